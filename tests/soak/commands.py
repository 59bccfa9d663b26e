"""Commands of `gnomon` as people and scripts give them, each with the exit status that it should have."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

import judge
from judge import Command
from settings import Settings
from soak import Soak


class Commands:
    def __init__(self, soak: Soak, settings: Settings) -> None:
        self.soak = soak
        self.settings = settings

    def local(self, *words: str, expect: Sequence[int] = (0,), timeout: float = 90, tool: str = "gnomon") -> Command:
        """A command that asks no daemon."""
        return self._run(tool, words, [], {}, expect, timeout)

    def ask(self, *words: str, token: str = "operator", expect: Sequence[int] = (0,), timeout: float = 60) -> Command:
        """A command that asks the daemon, by the name of a token."""
        soak, settings = self.soak, self.settings
        where = ["--url", f"https://127.0.0.1:{soak.port}", "--ca-file", settings.authority]
        environment = {"GNOMON_TOKEN_FILE": str(settings.token_file(token))}
        return self._run("gnomon", words, where, environment, expect, timeout)

    def _run(
        self,
        tool: str,
        words: Sequence[str],
        where: Sequence[str],
        environment: dict[str, str],
        expect: Sequence[int],
        timeout: float,
    ) -> Command:
        status: int | None = None
        try:
            done = subprocess.run(
                ["nice", str(self.soak.programs / tool), *words, *where],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                env=os.environ | environment,
                cwd=self.soak.folder,
                stdin=subprocess.DEVNULL,
            )
            status, output = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired as late:
            output = str(late)
        # `nice` becomes the command itself, so a signal shows as a negative status.
        command = Command(f"{tool} {' '.join(words)}", status, tuple(expect), output)
        self.soak.tally.add("commands")
        complaints = judge.of_command(command)
        if complaints and (not where or not self.soak.daemon_is_gone()):
            self.soak.found("command", *complaints)
        return command
