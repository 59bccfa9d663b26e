"""Receivers of notifications that take messages, refuse, fail, hang and are away; they note what came and when."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import http.server
import json
import select
import socket
import threading
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

import judge_messages
from judge_messages import Arrival
from settings import HOOK_AUTHORIZATION, HOOK_KEY
from soak import Soak

NAMES = {"/hook": "hook", "/critical": "critical"}
HANGS_SECONDS = 4.0  # longer than their timeout_seconds


def is_genuine(header: str | None, body: bytes, key: str) -> bool:
    """As docs/notifications.md verifies signatures."""
    parts = [part.split("=", 1) for part in (header or "").split(",") if "=" in part]
    sent = dict(parts).get("t", "")
    wanted = hmac.new(key.encode(), sent.encode() + b"." + body, hashlib.sha256).hexdigest()
    genuine = any(hmac.compare_digest(wanted, value) for name, value in parts if name == "v1")
    return genuine and sent.isdigit() and abs(time.time() - int(sent)) <= 60


class Receivers:
    """One server for all; the path says which receiver is meant."""

    def __init__(self, soak: Soak) -> None:
        self.soak = soak
        self.random = soak.random("receivers")
        self._lock = threading.Lock()
        self.arrivals: list[Arrival] = []
        receivers = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Nothing on stderr: what matters is noted."""

            def do_POST(self) -> None:  # noqa: N802 - the library's name
                receivers.take(self)

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, *_: object) -> None:
                """The daemon leaves when it has waited long enough."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, name="receivers", daemon=True).start()

    def take(self, request: http.server.BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        name = NAMES.get(request.path.split("?")[0], request.path)
        came = time.time()
        self._check_sender(name, request, body)
        status = self._status()
        if status is None:  # away: hangs up without an answer
            request.close_connection = True
            request.connection.shutdown(socket.SHUT_RDWR)
            self.soak.tally.add("messages hung up on")
            self._note(name, request, body, came, 0)
            return
        if status == HTTPStatus.GATEWAY_TIMEOUT:
            time.sleep(HANGS_SECONDS)
        heard = self._answer(request, status)
        self.soak.tally.add(f"messages {name} {status}")
        self._note(name, request, body, came, status if heard else 0)

    def _status(self) -> int | None:
        if self.soak.away("receivers"):
            return None
        if self.soak.share > 0.9:  # at the end everything comes to rest
            return 200
        with self._lock:
            chance = self.random.random()
        for most, status in ((0.06, 503), (0.08, 504), (0.09, 400), (0.10, 429)):
            if chance < most:
                return status
        return 200

    def _answer(self, request: http.server.BaseHTTPRequestHandler, status: int) -> bool:
        """Answers; false when the daemon may not have heard it."""
        connection = request.connection
        readable, _, _ = select.select([connection], [], [], 0)
        if readable:
            return False
        try:
            request.send_response(status)
            if status in (429, 503):
                request.send_header("Retry-After", "1")
            request.send_header("Content-Length", "0")
            request.end_headers()
        except OSError:
            return False
        return True

    def _check_sender(self, name: str, request: http.server.BaseHTTPRequestHandler, body: bytes) -> None:
        if not is_genuine(request.headers.get("X-Gnomon-Signature"), body, HOOK_KEY):
            self.soak.found("signature", f"{name}: {request.headers.get('X-Gnomon-Signature')} is not genuine")
        wanted = HOOK_AUTHORIZATION if name == "hook" else None
        if request.headers.get("Authorization") != wanted:
            self.soak.found("signature", f"{name}: Authorization is not what authorization_file says")

    def _note(
        self, name: str, request: http.server.BaseHTTPRequestHandler, body: bytes, came: float, status: int
    ) -> None:
        try:
            alert: Any = json.loads(body)["alerts"][0]
            arrival = Arrival(
                receiver=name,
                delivery=request.headers.get("X-Gnomon-Delivery", ""),
                run=alert["labels"].get("run", ""),
                kind=alert["annotations"].get("kind", ""),
                alert_status=alert.get("status", ""),
                decision=int(alert["labels"].get("decision", 0)),
                came=came,
                ended=time.time(),
                status=status,
                sent=judge_messages.time_of_signature(request.headers.get("X-Gnomon-Signature")),
                body=hashlib.sha256(body).hexdigest(),
            )
        except (ValueError, KeyError, IndexError, TypeError) as error:
            self.soak.found("message", f"{name}: not as documented ({error!r}): {body[:300]!r}")
            return
        with self._lock:
            self.arrivals.append(arrival)

    def removed(self, name: str) -> None:
        """From the configuration, with what waits for it."""
        with self._lock:
            self.arrivals.append(Arrival.of_removal(name, time.time()))

    def write(self, path: Path) -> None:
        """What came, a line each: the evidence of a finding."""
        with self._lock, path.open("w") as file:
            for arrival in self.arrivals:
                file.write(json.dumps(dataclasses.asdict(arrival)) + "\n")

    def judge(self) -> None:
        with self._lock:
            arrivals = list(self.arrivals)
        self.soak.found("message", *judge_messages.of_arrivals(arrivals))
