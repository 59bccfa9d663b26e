"""What the bits of this process depend on; bits are compared between equal ones only."""

from __future__ import annotations

import torch

from gnomon.records import Fingerprint
from gnomon.torch.ranks import world_size
from gnomon.torch.scaled_gemm import kernel_of


def fingerprint(build: str = "") -> Fingerprint:
    """Returns what bits depend on here: device, PyTorch, FP8 kernel, ranks, threads."""
    cuda = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if cuda else _cpu_name()
    kind = "cuda" if cuda else "cpu"
    libraries = f"torch {torch.__version__}, FP8 products by {kernel_of(kind)}"
    if cuda:
        libraries += f", cuda {torch.version.cuda}, cudnn {_cudnn_version()}"
    libraries += f", deterministic {torch.are_deterministic_algorithms_enabled()}"
    return Fingerprint(
        device, kind, libraries, build or "gnomon-client", world_size(), torch.get_num_threads()
    )


def _cudnn_version() -> int | None:
    version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return version


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            ]
    except OSError:
        names = []
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{names[0] if names else 'CPU'} ({capability})"
