"""TransformerEngine's own code for its debug tool, without the extension that needs CUDA.

The distribution `transformer-engine` has the Python files, and refuses to be imported without the
compiled libraries. Here the files that decide about a GEMM are imported as they are, and the
modules that need CUDA are replaced by empty ones: tensors are not quantised, decisions are made.
"""

from __future__ import annotations

import ast
import importlib.metadata
import pathlib
import sys
import textwrap
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

EMPTY = {
    "transformer_engine_torch": (),
    "transformer_engine.pytorch.tensor": ("get_all_tensor_types", "Quantizer", "QuantizedTensor"),
    "transformer_engine.pytorch.quantized_tensor": (
        "QuantizedTensor",
        "Quantizer",
        "QuantizedTensorStorage",
        "prepare_for_saving",
        "restore_from_saved",
    ),
    "transformer_engine.debug.features.utils.stats_buffer": (),
}
PACKAGES = ("", ".common", ".pytorch", ".debug", ".debug.features", ".debug.features.utils")


class Quantizer:
    """What DebugQuantizer needs of its base class and of the quantizer that it wraps."""

    def __init__(self, *, rowwise: bool = True, columnwise: bool = True) -> None:
        self.rowwise_usage, self.columnwise_usage = rowwise, columnwise


class StatsBuffers:
    def log_stats(self) -> None: ...
    def reset(self) -> None: ...


def root() -> pathlib.Path:
    """Where the distribution's files are. Skips the test where it is not installed."""
    try:
        distribution = importlib.metadata.distribution("transformer-engine")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs the files of transformer-engine: pip install --no-deps --target DIR, "
                    "with DIR in PYTHONPATH")  # fmt: skip
    return pathlib.Path(str(distribution.locate_file("transformer_engine")))


@contextmanager
def importable(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Has the files importable inside the `with`. Gives a folder, made in `folder`, with those of
    TransformerEngine's features that compute no statistics.
    """
    path = root()
    features = folder / "features"
    features.mkdir()
    for name in ("api.py", "disable_quantization_gemm.py"):
        (features / name).write_text((path / "debug" / "features" / name).read_text())
    before = dict(sys.modules)
    for suffix in PACKAGES:
        package = types.ModuleType("transformer_engine" + suffix)
        package.__path__ = [str(path / suffix[1:].replace(".", "/"))]
        sys.modules[package.__name__] = package
    for name, members in EMPTY.items():
        module: Any = types.ModuleType(name)
        for member in members:
            setattr(module, member, Quantizer if member == "Quantizer" else type(member, (), {}))
        sys.modules[name] = module
    stats: Any = sys.modules["transformer_engine.debug.features.utils.stats_buffer"]
    stats.STATS_BUFFERS = StatsBuffers()
    try:
        yield features
    finally:
        for name in set(sys.modules) - set(before):
            if name.startswith("transformer_engine"):
                del sys.modules[name]


class Linear:
    """A layer that decides as TransformerEngine's does: the methods are the text of its base.py."""

    __module__ = "transformer_engine.pytorch.module.linear"
    name: str

    def __init__(self, name: str) -> None:
        self.name = name
        self.next_iter_when_debug_should_be_run = 0
        self.wgrad_store = None
        self._fp8_workspaces: dict[str, Any] = {}

    def fast_setattr(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def tensors(self) -> dict[str, tuple[str, str]]:
        """What a forward pass decides: how each operand is given to its two GEMMs. All are
        quantised where the debug tool is left out.
        """
        from transformer_engine.debug.pytorch.debug_quantization import DebugQuantizer

        operands = ("activation", "weight", "gradient")
        if self.is_debug_iter():
            made = [DebugQuantizer(self.name, each, Quantizer(), None, 1) for each in operands]
            if not self.no_debug_features_active(made):
                return {
                    each.tensor_name: (each.rowwise_tensor_plan, each.columnwise_tensor_plan)
                    for each in made
                }
        return dict.fromkeys(operands, ("Quantize", "Quantize"))

    def is_debug_iter(self) -> bool:
        return bool(self._of_te("is_debug_iter")(self))

    def no_debug_features_active(self, quantizers: list[Any]) -> bool:
        return bool(self._of_te("no_debug_features_active")(self, quantizers))

    @staticmethod
    def _of_te(method: str) -> Any:
        from transformer_engine.debug.pytorch.debug_state import TEDebugState
        from transformer_engine.debug.pytorch.utils import (
            any_feature_enabled,
            next_iter_when_debug_should_be_run,
        )

        TEDebugState.initialize()
        text = (root() / "pytorch" / "module" / "base.py").read_text()
        found = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef) and node.name == method
        ]
        names = {
            "TEDebugState": TEDebugState,
            "any_feature_enabled": any_feature_enabled,
            "next_iter_when_debug_should_be_run": next_iter_when_debug_should_be_run,
        }
        exec(textwrap.dedent(ast.get_source_segment(text, found[0]) or ""), names)
        return names[method]
