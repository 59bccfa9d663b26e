"""What a registration says of a model and of the machine, without an import of a framework."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import sys
from collections.abc import Sequence
from typing import Any

from gnomon.errors import ConfigError
from gnomon.records import Fingerprint

_TEXT_MAX = 200
_LIBRARIES_MAX = 1000


def sites_of(model: Any) -> list[str]:
    """Names of the modules with GEMMs: those that have `in_features` and `out_features`."""
    if not hasattr(model, "named_modules"):
        accepted = "a PyTorch module, or sites=[...]: names like model.layers.0.mlp.up_proj"
        raise ConfigError("model", type(model).__name__, accepted)
    return [
        name
        for name, module in model.named_modules()
        if name and hasattr(module, "in_features") and hasattr(module, "out_features")
    ]


def layers_of(sites: Sequence[str]) -> int:
    """One more than the highest number that stands as a part of a site's name."""
    numbers = [int(part) for site in sites for part in re.findall(r"(?<=\.)\d+(?=\.)", f".{site}.")]
    return max(numbers, default=-1) + 1


def parameters_of(model: Any) -> int:
    """Elements of all parameters; 0 where the model does not say."""
    if not hasattr(model, "parameters"):
        return 0
    return sum(int(each.numel()) for each in model.parameters())


def own_fingerprint() -> Fingerprint:
    """Of this process, as far as it is known without an import; PyTorch where it is imported."""
    libraries = [f"Python {platform.python_version()}"]
    device, backend = _processor(), "cpu"
    threads = os.cpu_count() or 1
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda"):
        libraries.append(f"torch {torch.__version__}")
        threads = int(torch.get_num_threads())
        if torch.cuda.is_available():
            device, backend = str(torch.cuda.get_device_name()), "cuda"
            libraries.append(f"CUDA {torch.version.cuda}")
    text = ", ".join(libraries)[:_LIBRARIES_MAX]
    build = f"gnomon-client {_version()}"
    return Fingerprint(device[:_TEXT_MAX], backend, text, build, 1, threads)


def marked_inexact(fingerprint: Fingerprint, source: str) -> Fingerprint:
    """A fingerprint that no other source has.

    Between equal fingerprints the controller compares bits, and takes a difference for a broken
    machine. A program that does not promise the same bits again must not share one.
    """
    build = f"{fingerprint.build} (not exact: {source})"
    text = build.encode()[:_TEXT_MAX].decode(errors="ignore")
    return dataclasses.replace(fingerprint, build=text)


def _version() -> str:
    from gnomon import __version__

    return __version__


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine() or "unknown"
