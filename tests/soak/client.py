"""HTTP over TLS to the daemon: each call says which answers it expects, and every answer is judged."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import judge
from contract import Contract
from judge import Answer
from soak import Soak

READ_ONLY = (200,)


@dataclass
class Reply:
    """What came back; status 0 when nothing did."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes = b""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


class Connector:
    """Makes connections of TLS to the daemon, and holds the document that answers are compared with."""

    def __init__(self, soak: Soak, authority: str) -> None:
        self.soak = soak
        self.tls = ssl.create_default_context(cafile=authority)
        self.contract: Contract | None = None

    def connect(self, timeout: float = 40) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.soak.port, context=self.tls, timeout=timeout)

    def client(self, token: str, who: str) -> Client:
        return Client(self, token, who)


class Client:
    """One sender with one connection, as one thread uses it. `token` is a name in `soak.tokens`."""

    def __init__(self, connector: Connector, token: str, who: str) -> None:
        self._connector = connector
        self._soak = connector.soak
        self._token = token
        self._who = who
        self._connection: http.client.HTTPSConnection | None = None

    def get(self, path: str, expect: Sequence[int] = READ_ONLY) -> Reply:
        return self.ask("GET", path, expect=expect)

    def post(self, path: str, body: Any, expect: Sequence[int] = READ_ONLY) -> Reply:
        return self.ask("POST", path, body, expect=expect)

    def ask(self, method: str, path: str, body: Any = None, expect: Sequence[int] = READ_ONLY) -> Reply:
        """Asks once; a kept connection that the daemon has closed meanwhile (idle_seconds) is made anew."""
        headers = {"Authorization": "Bearer " + self._soak.tokens[self._token]}
        if isinstance(body, str):
            headers["Content-Type"] = "application/toml"
        elif body is not None:
            body = json.dumps(body, allow_nan=False)
            headers["Content-Type"] = "application/json"
        began = time.time()
        for last in (False, True):
            fresh = self._connection is None
            try:
                reply = self._exchange(method, path, body, headers)
                break
            except (http.client.HTTPException, OSError) as error:
                self.close()
                if last or (fresh and isinstance(error, TimeoutError)):
                    if not self._soak.daemon_is_gone():
                        self._soak.found("connection", f"{self._who}: {method} {path}: {error!r}")
                    return Reply(0)
        self._judge(method, path, reply, expect, time.time() - began)
        return reply

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> Reply:
        if self._connection is None:
            self._connection = self._connector.connect()
        encoded = None if body is None else body.encode()
        self._connection.request(method, path, body=encoded, headers=headers)
        response = self._connection.getresponse()
        raw = response.read()
        value: Any = raw
        if "json" in response.headers.get("Content-Type", ""):
            value = json.loads(raw)
        return Reply(response.status, value, dict(response.headers), raw)

    def _judge(self, method: str, path: str, reply: Reply, expect: Sequence[int], seconds: float) -> None:
        soak = self._soak
        place = path.split("?")[0]
        soak.tally.add("requests")
        soak.tally.add(f"answer {method} {re.sub(r'[0-9]+', 'N', place)} {reply.status}")
        schema: list[str] = []
        if self._connector.contract is not None:
            content_type = reply.headers.get("Content-Type", "")
            schema = self._connector.contract.complaints(method, place, reply.status, content_type, reply.raw)
        answer = Answer(
            who=self._who,
            request=f"{method} {path}",
            status=reply.status,
            expected=tuple(expect),
            detail=reply.raw[:300].decode(errors="replace") if reply.status >= 400 else "",
            schema=tuple(schema),
            seconds=seconds,
        )
        soak.found("answer", *judge.of_answer(answer))
