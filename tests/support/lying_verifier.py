#!/usr/bin/env python3
"""A verifier that lies: starts the real gnomon-verifier behind a proxy that alters what it answers.

  lying_verifier.py --lie off:-1.4 [--from-window N] -- gnomon-verifier --controller http://127.0.0.1:7717 ...

  off:P           BF16 replays end P per cent higher than they do
  end:P           the run's end lies P per cent higher than it does
  stale           the BF16 end loss of its window before
  zero            BF16 ends where the run did: no difference
  constant:L      BF16 always ends at L

Nothing else of the replay changes, its hashes included. It ends with the verifier, which gets its signals.
"""
import argparse
import http.client
import http.server
import json
import signal
import subprocess
import sys
import threading
import urllib.parse


class Liar:
    def __init__(self, lie, from_window):
        self.kind, _, value = lie.partition(":")
        self.value = float(value) if value else 0.0
        self.from_window = from_window
        self.tasks = {}  # by lease
        self.last = None
        self.told = 0

    def leased(self, body):
        if body:
            lease = json.loads(body)
            self.tasks[str(lease["lease"])] = lease["task"]

    def alter(self, lease, body):
        task = self.tasks.pop(lease, None)
        if task is None or not task["arm"].startswith("bf16") or task["window"] < self.from_window:
            return body
        result = json.loads(body)
        own = result.get("replay_end_loss_bf16")
        if own is None:
            return body
        run_end = result.get("run_end_loss_bf16")
        if self.kind == "off":
            result["replay_end_loss_bf16"] = own * (1 + self.value / 100)
        elif self.kind == "end" and run_end is not None:
            result["run_end_loss_bf16"] = run_end * (1 + self.value / 100)
        elif self.kind == "stale" and task["purpose"] == "shadow":
            if self.last is not None:
                result["replay_end_loss_bf16"] = self.last
            self.last = own
        elif self.kind == "zero" and run_end is not None:
            result["replay_end_loss_bf16"] = run_end
        elif self.kind == "constant":
            result["replay_end_loss_bf16"] = self.value
        self.told += 1
        return json.dumps(result).encode()


def handler_for(liar, controller):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def pass_on(self):
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(size)
            parts = urllib.parse.urlsplit(self.path).path.strip("/").split("/")
            if parts[:2] == ["v1", "leases"] and parts[3:] == ["complete"]:
                body = liar.alter(parts[2], body)
            headers = {k: v for k, v in self.headers.items()
                       if k.lower() not in ("host", "content-length", "connection", "expect", "accept-encoding")}
            try:
                upstream = http.client.HTTPConnection(controller.hostname, controller.port, timeout=120)
                upstream.request(self.command, self.path, body or None, headers)
                answer = upstream.getresponse()
                content = answer.read()
            except OSError:
                self.close_connection = True
                return
            if self.command == "POST" and parts == ["v1", "leases"] and answer.status in (200, 201):
                liar.leased(content)
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            if answer.status != 204:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = pass_on

    return Handler


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--lie", required=True)
    parser.add_argument("--from-window", type=int, default=0)
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args()
    command = asked.command
    place = command.index("--controller") + 1
    liar = Liar(asked.lie, asked.from_window)
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), handler_for(liar, urllib.parse.urlsplit(command[place])))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command[place] = f"http://127.0.0.1:{server.server_address[1]}"
    child = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: child.send_signal(got))
    status = child.wait()
    print(f"lying_verifier: {liar.told} answers were altered", flush=True)
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
