"""The process of gnomond: its start, and its end."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable

from judge import End
from settings import Settings
from soak import Soak

STARTS_WITHIN_SECONDS = 30.0


class Daemon:
    def __init__(self, soak: Soak, settings: Settings) -> None:
        self.soak = soak
        port_file = settings.path("port")
        self._log = settings.path("gnomond.log").open("ab")
        # It does not outlive this program, however that ends.
        words = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        words += ["nice", "-n", "10", str(soak.programs / "gnomond")]
        words += ["--config", str(settings.file), "--port-file", str(port_file)]
        self.process = subprocess.Popen(words, cwd=soak.folder, stdout=self._log, stderr=self._log)
        until = time.time() + STARTS_WITHIN_SECONDS
        while time.time() < until and self.process.poll() is None:
            if port_file.exists() and (text := port_file.read_text().strip()):
                soak.port = int(text)
                return
            time.sleep(0.1)
        self.kill()
        raise RuntimeError(f"gnomond did not start: {settings.path('gnomond.log').read_text()[-500:]}")

    @property
    def status(self) -> int | None:
        return self.process.poll()

    def stop(self, while_it_drains: Callable[[], None]) -> End:
        """SIGTERM, what is asked within drain_seconds, and how it ended."""
        times = self.soak.times
        limit = times.drain + times.stop + 5  # and 5 for the WAL and a busy machine
        began = time.time()
        self.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        while_it_drains()
        try:
            status: int | None = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        return End(asked=True, status=status, seconds=time.time() - began, limit_seconds=limit)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()
