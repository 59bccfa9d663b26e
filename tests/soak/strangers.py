"""Clients that do not behave: dropped long polls, half requests, slow readers, tokens that nobody knows."""

from __future__ import annotations

import http.client
import json
import random
import socket
import time
from collections.abc import Callable

from client import Connector
from soak import Soak
from truth import FINGERPRINT


class Strangers:
    def __init__(self, soak: Soak, connector: Connector) -> None:
        self.soak = soak
        self.connector = connector
        self.held: list[tuple[float, socket.socket]] = []  # until when, which

    def start(self) -> None:
        self.soak.start("strangers", self.work)

    def work(self) -> None:
        draw = self.soak.random("strangers")
        ways: list[Callable[[random.Random], None]] = [
            self.never_reads,
            self.drops_a_lease,
            self.drops_a_poll,
            self.sends_half,
            self.says_nothing,
            self.speaks_plainly,
            self.guesses,
        ]
        reader = self.connector.client("reader", "strangers")
        while not self.soak.sleep(draw.uniform(0.5, 2.5)):
            try:
                draw.choice(ways)(draw)
            except (OSError, http.client.HTTPException):
                self.soak.tally.add("strangers cut off")
            self._let_go(time.time())
            for path, usual in (("/livez", 200), ("/version", 200), ("/nothing", 404), ("/v1/runs/abc", 404)):
                if draw.random() < 0.1:
                    reader.get(path, expect=(usual, 400))
        self._let_go(float("inf"))

    def _let_go(self, now: float) -> None:
        for entry in [entry for entry in self.held if entry[0] < now]:
            self.held.remove(entry)
            entry[1].close()

    def _connect(self) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self.soak.port), timeout=10)
        return self.connector.tls.wrap_socket(plain, server_hostname="127.0.0.1")

    def _send(self, line: str, token: str, body: str = "", length: int | None = None) -> socket.socket:
        secret = self.soak.tokens[token]
        head = f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\n"
        if body:
            head += f"Content-Length: {len(body) if length is None else length}\r\n"
        connection = self._connect()
        connection.sendall((head + "\r\n" + body).encode())
        return connection

    def _hold(self, connection: socket.socket, seconds: float) -> None:
        self.held.append((time.time() + seconds, connection))

    def never_reads(self, draw: random.Random) -> None:
        self._hold(self._send("GET /v1/events", "reader"), draw.choice([2, 10, 20]))

    def drops_a_lease(self, draw: random.Random) -> None:
        """It may have been given a replay that nobody works on then."""
        body = json.dumps({"verifier": "dropped", "fingerprint": FINGERPRINT, "labels": {"pool": "nobody"}})
        connection = self._send("POST /v1/leases?wait=60s", "verifier", body)
        time.sleep(draw.choice([0, 0.3]))
        connection.close()

    def drops_a_poll(self, draw: random.Random) -> None:
        poll = self._send("GET /v1/runs/run-1/directives?after=99999&wait=120s", "trainer-a")
        self._hold(poll, draw.choice([0.5, 8]))

    def sends_half(self, draw: random.Random) -> None:
        self._hold(self._send("POST /v1/runs", "trainer", '{"na', 1000), draw.choice([1, 8]))

    def says_nothing(self, draw: random.Random) -> None:
        self._hold(socket.create_connection(("127.0.0.1", self.soak.port), timeout=5), draw.choice([1, 8]))

    def speaks_plainly(self, _: random.Random) -> None:
        with socket.create_connection(("127.0.0.1", self.soak.port), timeout=5) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = connection.recv(1000)
        if answer and not answer.startswith(b"HTTP/1.1 400"):
            self.soak.found("answer", f"plain HTTP at a port of TLS was answered {answer[:60]!r}")

    def guesses(self, _: random.Random) -> None:
        """Fifteen guesses at once: 401, and 429 when they come too often."""
        connection = self.connector.connect(10)
        for _try in range(15):
            connection.request("GET", "/v1/runs", headers={"Authorization": "Bearer a-guess"})
            answer = connection.getresponse()
            answer.read()
            self.soak.tally.add(f"guesses {answer.status}")
            if answer.status not in (401, 429):
                self.soak.found("access", f"a guessed token was answered {answer.status}")
        connection.close()
