"""The daemon's own OpenAPI document, and whether an answer is one that it promises."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass
from typing import Any

import jsonschema

METHODS = ("get", "put", "post", "delete")


@dataclass(frozen=True)
class Route:
    """A path of the document, and what it looks like in a request."""

    template: str
    pattern: re.Pattern[str]


class Contract:
    """Finds the operation of a request and checks its answer: status, content type, and body."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._lock = threading.Lock()
        self._validators: dict[tuple[str, str, str], jsonschema.Draft202012Validator] = {}
        routes = [
            Route(path, re.compile("^" + re.sub(r"\\{[^}]*\\}", "[^/]+", re.escape(path)) + "$"))
            for path in document["paths"]
        ]
        self._routes = sorted(routes, key=lambda route: route.template.count("{"))

    def template(self, path: str) -> str | None:
        for route in self._routes:
            if route.pattern.match(path):
                return route.template
        return None

    def complaints(self, method: str, path: str, status: int, content_type: str, body: bytes) -> list[str]:
        """What the answer has that the document does not; empty when all is as it says."""
        template = self.template(path)
        if template is None:
            return [] if status in (400, 401, 403, 404, 405, 429) else [f"status {status} of a path that is not there"]
        operation = self._document["paths"][template].get(method.lower())
        if operation is None:
            return [] if status == 405 else [f"status {status} of a method that is not there"]
        response = operation["responses"].get(str(status))
        if response is None:
            return [f"status {status} is not in the document"]
        if "$ref" in response:
            response = self._document["components"]["responses"][response["$ref"].rsplit("/", 1)[1]]
        content = response.get("content")
        if not content:
            return [f"{len(body)} bytes where the document has no content"] if body else []
        kind = content_type.split(";")[0].strip()
        if kind not in content:
            return [f"content type {kind!r} is not in the document"]
        if "json" not in kind:
            return []
        try:
            value = json.loads(body)
        except ValueError as error:
            return [f"no JSON: {error}"]
        return self._violations((template, method, f"{status} {kind}"), content[kind]["schema"], value)

    def _violations(self, key: tuple[str, str, str], schema: dict[str, Any], value: Any) -> list[str]:
        with self._lock:
            if key not in self._validators:
                whole = dict(schema, components=self._document["components"])
                self._validators[key] = jsonschema.Draft202012Validator(whole)
            validator = self._validators[key]
        error = next(validator.iter_errors(value), None)
        if error is None:
            return []
        place = "/".join(str(part) for part in error.absolute_path)
        return [f"at {place or 'the top'}: {error.message[:300]}"]
