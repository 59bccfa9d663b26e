"""gnomon-send: delivers the reports that a run has left in its directory."""

from __future__ import annotations

import argparse
import logging
import pathlib
import sys
import time

from gnomon.connection import ClientOptions
from gnomon.directory_lock import DirectoryLock
from gnomon.errors import ConfigError, GnomonError
from gnomon.json_record import from_json
from gnomon.records import RunRegistration
from gnomon.reporter import Contact, Reporter, Standing
from gnomon.run_state import RunState
from gnomon.spool import Spool

STATUS_FAILED = 1
STATUS_CONFIG = 2
_SPOOL_BYTES_MAX = 1 << 40  # nothing is added to it


def send(folder: pathlib.Path, client: ClientOptions, seconds: float, log: logging.Logger) -> int:
    """How many reports are left after `seconds` at most. Raises ConfigError."""
    state = RunState.load(folder / "state.json") if folder.is_dir() else None
    if state is None or not (folder / "registration.json").exists():
        raise ConfigError("directory", str(folder), "a run's, like gnomon/NAME")
    registration = from_json(RunRegistration, (folder / "registration.json").read_text("utf-8"))
    lock = DirectoryLock(folder)
    standing = Standing(state.attempts, state.last_directive, state.newest_plan_version)
    spool = Spool(folder / "spool", _SPOOL_BYTES_MAX)
    reporter = Reporter(client, registration, lambda: standing, spool, Contact(), log)
    log.info("%d reports to send", spool.count)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and reporter.replaced is None:
        spool.wake()
        if spool.wait_until_empty(0.1):
            break
    left = spool.count
    reporter.close()
    spool.close()
    lock.close()
    return left


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="gnomon-send",
        description="Delivers the reports that a run has left in its directory.",
        epilog="exit status: 0 all are delivered; 1 some are left; 2 the directory or the URL "
        "cannot be accepted.",
        allow_abbrev=False,
    )
    parser.add_argument("directory", help="of the run, like gnomon/NAME")
    parser.add_argument("--controller", metavar="URL", default="", help="without it GNOMON_URL")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=60.0, help="(60)")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="gnomon-send: %(message)s")
    log = logging.getLogger("gnomon.send")
    client = ClientOptions(url=arguments.controller).with_environment()
    try:
        left = send(pathlib.Path(arguments.directory), client, arguments.timeout, log)
    except ConfigError as error:
        print(f"gnomon-send: {error}", file=sys.stderr)
        return STATUS_CONFIG
    except GnomonError as error:
        print(f"gnomon-send: {error}", file=sys.stderr)
        return STATUS_FAILED
    if left:
        log.error("%d reports are left", left)
    return STATUS_FAILED if left else 0


if __name__ == "__main__":
    sys.exit(main())
