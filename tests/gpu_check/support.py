"""What the tests of scripts/gpu-check share: the script as a module, and settings with invented programs and machines."""

import importlib.machinery
import importlib.util
import pathlib
import sys
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "lab"))

from gpu import frame, plan, results  # noqa: E402

FACTS = {"gpu": {"name": "NVIDIA H100 80GB HBM3"}, "device": "H100", "commit": "abc", "processor": "p", "versions": {}}


def script():
    loader = importlib.machinery.SourceFileLoader("gpu_check", str(ROOT / "scripts/gpu-check"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
    loader.exec_module(module)
    return module


def part(name, run, limit=60, least=1):
    """One of a plan."""
    run.__doc__ = run.__doc__ or "A part of a test."
    return plan.Part(name, "1", limit, least, run)


class InAFolder(unittest.TestCase):
    """Has a setting whose programs, results and work lie in a folder that goes."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        (self.folder / "bin").mkdir()
        frame.log, said = self.said_by(frame.log)
        self.said = said

    def said_by(self, real):
        said = []
        self.addCleanup(setattr, frame, "log", real)
        return said.append, said

    def setting(self, smoke=False, **facts):
        given = types.SimpleNamespace(python=sys.executable, llmc=None)
        made = frame.Setting(self.folder / "bin", self.folder / "out", self.folder / "work", smoke, given)
        made.facts = {**FACTS, **facts}
        return made

    def results(self, setting, label="call-1"):
        return results.Results(setting, label, [setting.out])

    def program(self, name, text, folder="bin"):
        """An executable with this text."""
        path = self.folder / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path
