"""Runs the tests of the live pin with several versions of torchao, each in a folder of its own.

python check_torchao.py [--keep DIR] [VERSION ...]      (default: those that float8_pin names)
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

from gnomon.torch.float8_pin import TESTED

HERE = pathlib.Path(__file__).parent


def check(version: str, folder: pathlib.Path) -> bool:
    """Installs one version where it is missing, and says whether its tests pass."""
    target = folder / version
    if not target.exists():
        install = [
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(target),
            f"torchao=={version}",
        ]
        subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    program = "import torchao; print(torchao.__version__)"
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()
    print(f"== torchao {found}", flush=True)
    tests = [sys.executable, "-m", "pytest", "tests/test_torch_float8_pin.py"]
    ran = subprocess.run(tests, cwd=HERE, env=environment, check=False)
    return found.split("+")[0] == version and ran.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=pathlib.Path, help="where the versions are installed")
    parser.add_argument("versions", nargs="*", default=list(TESTED))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or pathlib.Path(scratch)
        failed = [version for version in arguments.versions if not check(version, folder)]
    print(f"torchao: failed with {', '.join(failed)}" if failed else "torchao: all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
