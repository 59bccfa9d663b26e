"""Where the tests of PyTorch compute: GNOMON_TEST_DEVICE, "cpu" by default, or "cuda"."""

from __future__ import annotations

import os

DEVICE = os.environ.get("GNOMON_TEST_DEVICE", "cpu")

if DEVICE == "cuda":
    # Bits repeat on a GPU only where every kernel sums in one order.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    torch.use_deterministic_algorithms(True)
