"""gnomon-verify: replays windows of supervised runs in a user's own code."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
from types import FrameType

from gnomon import __version__
from gnomon.command_verifier import CommandOptions, CommandReplayer
from gnomon.connection import ClientOptions
from gnomon.errors import ConfigError, GnomonError
from gnomon.lease_loop import LeaseLoop, LoopOptions, Replayer
from gnomon.replay_process import ProcessReplayer

STATUS_FAILED = 1
STATUS_CONFIG = 2
_LABELS_MAX = 15

EPILOG = """
examples:
  gnomon-verify my_trainer:replay --controller http://127.0.0.1:7717 --name "$(hostname):gpu0"
  gnomon-verify replay.py:replay
  gnomon-verify --command replay.toml

SIGTERM and SIGINT finish and answer the replay at hand; a second signal ends at once. Two verifiers
under different names are two sources: no verdict rests on one alone.

exit status: 0 ended in order; 1 failed (with --once: no replay was completed); 2 the command line,
the function or the file cannot be accepted.
"""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gnomon-verify",
        description="Leases replays from gnomond, runs each in a function or a command, and sends "
        "back what it has shown.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("function", nargs="?", help="module:function or file.py:function, with @gnomon.verifier")
    add("--command", metavar="FILE", help="a TOML file whose [command] is run for each replay")
    add("--controller", metavar="URL", default="", help="gnomond's; without it GNOMON_URL")
    add("--name", default=f"{socket.gethostname()}:{os.getpid()}", help="unique among all")
    add("--label", metavar="KEY=VALUE", action="append", default=[], help="may be given again")
    add("--timeout", metavar="SECONDS", type=float, default=3600.0, help="of one replay (3600)")
    add("--root", metavar="DIR", action="append", default=[], help="with --command: read only here")
    add("--once", action="store_true", help="end after one lease")
    for option in ("--token-file", "--ca-file", "--certificate-file", "--key-file"):
        add(option, metavar="FILE", default="")
    levels = ["debug", "info", "warning", "error"]
    add("--log-level", choices=levels, default="info")
    add("--version", action="version", version=f"gnomon-verify {__version__}")
    return parser


def make_replayer(arguments: argparse.Namespace) -> Replayer:
    """Raises ConfigError."""
    if bool(arguments.function) == bool(arguments.command):
        given = "both" if arguments.function else "neither"
        raise ConfigError("function, --command", given, "one of them")
    if arguments.command:
        return CommandReplayer(CommandOptions.load(arguments.command), arguments.root)
    if arguments.root:
        raise ConfigError("--root", repr(arguments.root), "only with --command")
    if not arguments.timeout > 0:
        raise ConfigError("--timeout", str(arguments.timeout), "more than 0 seconds")
    return ProcessReplayer(arguments.function, arguments.timeout)


def read_labels(pairs: list[str]) -> dict[str, str]:
    """Raises ConfigError."""
    labels: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key or key in labels or len(labels) >= _LABELS_MAX:
            accepted = f"KEY=VALUE, each key once, {_LABELS_MAX} at most"
            raise ConfigError("--label", repr(pair), accepted)
        labels[key] = value
    return labels


def main(argv: list[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    logging.basicConfig(
        level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s"
    )
    log = logging.getLogger("gnomon.verify")
    client = ClientOptions(
        url=arguments.controller,
        token_file=arguments.token_file,
        ca_file=arguments.ca_file,
        certificate_file=arguments.certificate_file,
        key_file=arguments.key_file,
    ).with_environment()
    replayer: Replayer | None = None
    try:
        labels = read_labels(arguments.label)
        replayer = make_replayer(arguments)
        options = LoopOptions(client, arguments.name, labels, arguments.once)
        loop = LeaseLoop(options, replayer, log)
        _end_on_signals(loop)
        log.info("%s asks %s for replays", arguments.name, client.url)
        completed = loop.run()
        log.info("%d replays completed", completed)
        return STATUS_FAILED if arguments.once and completed == 0 else 0
    except ConfigError as error:
        print(f"gnomon-verify: {error}", file=sys.stderr)
        return STATUS_CONFIG
    except GnomonError as error:
        print(f"gnomon-verify: {error}", file=sys.stderr)
        return STATUS_FAILED
    finally:
        if replayer is not None:
            replayer.close()


def _end_on_signals(loop: LeaseLoop) -> None:
    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        loop.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


if __name__ == "__main__":
    sys.exit(main())
