"""Writes what the daemon is configured with: its file, a policy, tokens, secrets of receivers, certificates."""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from soak import Soak, Times

HOOK_KEY = "a-key-of-the-soak"
HOOK_AUTHORIZATION = "Bearer hook-authorization"
CERTIFICATES = ("one", "two", "three")
BACKUPS_KEPT = 3
TEAM_RUNS = "team-a-*"
TOKENS = {
    "admin": ("admin", ""),
    "operator": ("operator", ""),
    "operator-a": ("operator", TEAM_RUNS),
    "trainer": ("trainer", ""),
    "trainer-a": ("trainer", TEAM_RUNS),
    "verifier": ("verifier", ""),
    "reader": ("reader", ""),
}

# Windows as dense as a large budget pays, all arms, quick returns, short deadlines: much happens in a few minutes.
POLICY = """\
mode = "enforce"
[window]
steps = 5
open_max = 6
long_steps = 20
long_every = 40
[verification]
budget_percent = 60
[detector]
burn_in_windows = 3
spike_history = 32
windows_between_false_alarms = 50.0
[instrument]
every = 3
[triage]
pairs = 2
transients_max = 1
[attribution]
parallel = 3
replays_max = 12
[ladder]
rungs = ["pin", "recipe", "bf16", "hold"]
from = "evidence"
[return]
quiet_windows = 1
probe_passes = 1
quiet_windows_max = 4
[limits]
actions_max = 6
[controller]
on_loss = "pause"
grace_seconds = 1.0
[verifier]
lease_ttl_seconds = 2.0
attempts_max = 3
on_loss = "bf16"
loss_windows = 4
share = 1.0
requires = []
[directives]
timeout_seconds = 4.0
[economics]
spare_fraction = 0.2
"""

CONFIGURATION = """\
ledger = "ledger.sqlite"
listen = "127.0.0.1:0"
policy = "policy.toml"
threads = 2
series_keep_seconds = {times.series_keep}
external_url = "https://127.0.0.1:1"
[log]
level = "info"
format = "logfmt"
[limits]
connections = 128
queued_writes = 256
transfer_mib = 66
read_seconds = {times.read}
idle_seconds = {times.idle}
drain_seconds = {times.drain}
stop_seconds = {times.stop}
[auth]
tokens = "tokens.toml"
requests_per_second = 400.0
request_burst = 800.0
stranger_requests_per_second = 5.0
stranger_request_burst = 10.0
connections = 60
[checkpoints]
roots = ["{folder}/checkpoints"]
[tls]
certificate = "server.pem"
key = "server.key"
client_ca = "ca.pem"
client_certificates = "optional"
look_seconds = {times.look}
[backup]
folder = "backups"
every_seconds = {times.backup_every}
keep = {kept}
[retention]
stream_days = {days}
events_days = {days}
notices_days = {days}
statistics_days = {days}
device_health_days = {days}
steps_days = {days}
replay_steps_days = {days}
[[notify]]
name = "hook"
url = "http://127.0.0.1:{receivers}/hook?key=a-secret-in-the-path"
secret_file = "hook.key"
authorization_file = "hook.authorization"
timeout_seconds = 3.0
retry_first_seconds = 0.5
retry_longest_seconds = 4.0
[[notify]]
name = "critical"
url = "http://127.0.0.1:{receivers}/critical"
secret_file = "hook.key"
minimum_severity = "critical"
runs = ["team-*", "memory*"]
timeout_seconds = 3.0
retry_first_seconds = 0.5
retry_longest_seconds = 4.0
[[notify]]
name = "nobody"
url = "http://127.0.0.1:{nobody}/nothing"
kinds = ["ended", "held"]
timeout_seconds = 1.0
retry_first_seconds = 1.0
retry_longest_seconds = 5.0
give_up_hours = {give_up}
"""


@dataclass
class Settings:
    """The files of one daemon, all in the folder of its soak."""

    soak: Soak
    receivers_port: int
    nobody: socket.socket  # bound, and never listening: whoever connects there is refused

    @property
    def file(self) -> Path:
        return self.soak.folder / "gnomond.toml"

    @property
    def authority(self) -> str:
        return str(self.soak.folder / "ca.pem")

    def path(self, name: str) -> Path:
        return self.soak.folder / name

    def configuration(self) -> str:
        times: Times = self.soak.times
        return CONFIGURATION.format(
            times=times,
            folder=self.soak.folder,
            kept=BACKUPS_KEPT,
            days=times.retention / 86400,
            receivers=self.receivers_port,
            nobody=self.nobody.getsockname()[1],
            give_up=max(self.soak.seconds / 10, 10) / 3600,
        )

    def write(self) -> None:
        """Everything that the daemon's start needs."""
        for folder in ("checkpoints", "backups", "tokens", "copies"):
            self.path(folder).mkdir()
        put(self.path("policy.toml"), POLICY)
        put(self.path("hook.key"), HOOK_KEY + "\n")
        put(self.path("hook.authorization"), HOOK_AUTHORIZATION + "\n")
        put(self.file, self.configuration())
        self._make_certificates()
        for name, (role, runs) in TOKENS.items():
            self.create_token(name, role, *(["--runs", runs] if runs else []))

    def create_token(self, name: str, role: str, *more: str) -> None:
        """By `gnomon token create`, as people do it; the secret goes into a file and into `soak.tokens`."""
        words = ["token", "create", name, "--role", role, *more, "--file", str(self.path("tokens.toml"))]
        done = subprocess.run([self.soak.programs / "gnomon", *words], capture_output=True, text=True, check=True)
        self.soak.tokens[name] = done.stdout.strip()
        put(self.token_file(name), done.stdout)

    def token_file(self, name: str) -> Path:
        return self.path("tokens") / name

    def use_certificate(self, name: str) -> None:
        """Puts a certificate and its key in the place of those that are served, key first, as renewals do."""
        for ending in ("key", "pem"):
            put(self.path("server." + ending), self.path(f"{name}.{ending}").read_text())

    def _make_certificates(self) -> None:
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        put(self.path("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1")
        subject = "/CN=authority of a soak"
        self._openssl("req", "-x509", *key, "-days", "30", "-subj", subject, "-keyout", "ca.key", "-out", "ca.pem")
        for name in CERTIFICATES:
            request = ["-subj", f"/CN=gnomond-{name}", "-keyout", f"{name}.key", "-out", f"{name}.csr"]
            self._openssl("req", *key, *request)
            sign = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "20", "-extfile", "names"]
            self._openssl("x509", "-req", "-in", f"{name}.csr", *sign, "-out", f"{name}.pem")
        self.use_certificate("one")

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.soak.folder, capture_output=True, check=True)


def put(path: Path, text: str) -> None:
    """Replaces a file at once, readable by its owner alone, so that nobody ever reads half of it."""
    new = path.with_name(path.name + ".new")
    new.touch(mode=0o600)
    new.write_text(text)
    os.replace(new, path)
