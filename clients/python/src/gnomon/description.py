"""What the daemon says of its API: which members its messages have.

This client works with older daemons. It leaves out members that a daemon does not know, since an
unknown member is refused.
"""

from __future__ import annotations

import json
from typing import Any

from gnomon.connection import Connection
from gnomon.errors import ConnectionFailed


class Description:
    """The schemas of one daemon's /openapi.json."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._schemas: dict[str, Any] = document["components"]["schemas"]

    @staticmethod
    def fetch(connection: Connection) -> Description:
        """Asks the daemon. Raises ApiError and ConnectionFailed."""
        answer = connection.request("GET", "/openapi.json")
        try:
            return Description(json.loads(answer.body))
        except (ValueError, KeyError, TypeError):
            raise ConnectionFailed(
                f"{connection.url}/openapi.json is no description of a gnomond"
            ) from None

    def requires(self, message: str, member: str) -> bool:
        return member in self._schemas.get(message, {}).get("required", ())

    def words(self, message: str, member: str) -> list[str]:
        """What the member may be; empty where anything is."""
        return list(self._members(message).get(member, {}).get("enum", ()))

    def known(self, message: str, value: dict[str, Any]) -> dict[str, Any]:
        """The members of `value` that this daemon takes."""
        members = self._members(message)
        return {name: each for name, each in value.items() if name in members}

    def _members(self, message: str) -> dict[str, Any]:
        members: dict[str, Any] = self._schemas.get(message, {}).get("properties", {})
        return members
