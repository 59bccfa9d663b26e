"""FP8 operands and their products.

A tensor becomes FP8 by `quantize`: y = cast(clamp(x · s)), s = largest value of the format / amax.
`multiply` is `torch._scaled_mm`. `multiply_emulated` is the same product of the same FP8 values in
FP32: a cross-check, the arm `fakequant`, and what `multiply` does on a device whose PyTorch has no
FP8 kernel (`kernel_of` says which).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

FORMATS: dict[str, torch.dtype] = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}

# What one scale is for: the whole tensor, each row, or each column.
Granularity = Literal["tensor", "row", "column"]

_SCALE_MAX = 2.0**60  # a larger one would leave FP32 when two of them are multiplied
_TILE = 16  # cuBLASLt wants every size of an FP8 product to be a multiple of it
_kernels: dict[str, str] = {}  # what kernel_of has found out


@dataclass(frozen=True)
class Operand:
    """A matrix in FP8: `values` (the shape of what was quantised) times `inverse_scale` (FP32, of
    the shape [], [rows, 1] or [1, columns]).
    """

    values: Tensor
    inverse_scale: Tensor

    def t(self) -> Operand:
        """Returns the transpose."""
        inverse = self.inverse_scale
        return Operand(self.values.t(), inverse.t() if inverse.dim() == 2 else inverse)

    def dequantized(self) -> Tensor:
        """Returns the values it stands for, in FP32."""
        return self.values.float() * self.inverse_scale


def quantize(
    x: Tensor,
    fmt: str,
    granularity: Granularity = "tensor",
    power_of_two: bool = False,
    log2_factor: int = 0,
) -> Operand:
    """Rounds the matrix `x` to `fmt` ("e4m3" or "e5m2"), saturating. A tile whose largest
    magnitude is 0, NaN or infinite is scaled by 1. `log2_factor` other than 0 is a fault: every
    scale is off by 2 to its power, so that values saturate or lose their bits.
    """
    dtype = FORMATS[fmt]
    largest = torch.finfo(dtype).max
    magnitudes = x.detach().abs()
    if granularity == "tensor":
        amax = magnitudes.amax().float()
    else:
        amax = magnitudes.amax(dim=1 if granularity == "row" else 0, keepdim=True).float()
    scale = (largest / amax).clamp(max=_SCALE_MAX)
    if power_of_two:
        # Its exponent alone: exp2 and log2 are not exact on every device.
        scale = (scale.view(torch.int32) & 0x7F800000).view(torch.float32)
    usable = torch.isfinite(amax) & (amax > 0)
    scale = torch.where(usable, scale, torch.ones_like(scale))
    if log2_factor:
        scale = scale * 2.0**log2_factor
    values = (x.float() * scale).clamp(-largest, largest).to(dtype)
    return Operand(values, scale.reciprocal())


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def kernel_of(device_type: str) -> str:
    """Returns "scaled_mm" where PyTorch multiplies FP8 on this kind of device ("cpu", "cuda"), with
    one scale and with one for each row; else "emulated".
    """
    if device_type not in _kernels:
        _kernels[device_type] = "scaled_mm" if _multiplies_fp8(device_type) else "emulated"
    return _kernels[device_type]


def _multiplies_fp8(device_type: str) -> bool:
    """Tries what PlanLinear needs: both formats, one scale and one for each row. A CPU's kernel has
    to take any shape; for a GPU `multiply` pads. Older kernels refuse some, or leave out scales.
    """
    m, k, n = (7, 13, 5) if device_type == "cpu" else (16, 32, 16)
    generator = torch.Generator("cpu").manual_seed(0)
    a = torch.randn(m, k, generator=generator, device="cpu").to(device_type)
    b = torch.randn(n, k, generator=generator, device="cpu").to(device_type)
    cases: tuple[tuple[str, Granularity], ...]
    cases = (("e4m3", "tensor"), ("e5m2", "tensor"), ("e4m3", "row"))
    try:
        for fmt, granularity in cases:
            left, right = quantize(a, fmt, granularity), quantize(b, "e4m3", granularity).t()
            want = multiply_emulated(left, right, torch.float32)
            for out in (torch.bfloat16, torch.float32):
                got = _scaled_mm(left, right, out, False).float()
                if not torch.allclose(got, want, rtol=0.02, atol=0.02):
                    return False
    except (RuntimeError, ValueError, NotImplementedError):
        return False
    return True


def multiply(a: Operand, b: Operand, out_dtype: torch.dtype, fast: bool = False) -> Tensor:
    """Returns a · b ([m, k] by [k, n]) by `torch._scaled_mm`. `fast` lets a GPU sum without
    promotion to FP32, as TransformerEngine and torchao do in the forward product.
    """
    if kernel_of(a.values.device.type) == "emulated":
        return multiply_emulated(a, b, out_dtype)
    return _scaled_mm(a, b, out_dtype, fast)


def _scaled_mm(a: Operand, b: Operand, out_dtype: torch.dtype, fast: bool) -> Tensor:
    m, n = a.values.shape[0], b.values.shape[1]
    left, right = _padded(a.values), _padded(b.values)
    scale_a, scale_b = a.inverse_scale, b.inverse_scale
    # The CPU's kernel with one scale is many times slower than that with a scale for each row.
    vectors = scale_a.dim() == 2 or scale_b.dim() == 2 or not left.is_cuda
    # A GPU's kernel with scales for rows gives BF16 alone, so an FP32 product is scaled behind it.
    scaled_after = vectors and out_dtype == torch.float32 and left.is_cuda
    if scaled_after:
        scale_a = scale_b = torch.ones((), device=left.device)
    elif vectors:
        scale_a = _vector(scale_a, left.shape[0], m).unsqueeze(1)
        scale_b = _vector(scale_b, right.shape[1], n).unsqueeze(0)
    product = torch._scaled_mm(
        left.contiguous(),
        right.t().contiguous().t(),  # column-major, as the tensor cores read it
        scale_a=scale_a,
        scale_b=scale_b,
        out_dtype=out_dtype,
        use_fast_accum=fast,
    )
    product = product if product.shape == (m, n) else product[:m, :n]
    return product * a.inverse_scale * b.inverse_scale if scaled_after else product


def multiply_emulated(a: Operand, b: Operand, out_dtype: torch.dtype) -> Tensor:
    """Returns a · b of the same FP8 values without the FP8 kernel: exact products, FP32 sums."""
    product = a.values.float() @ b.values.float()
    return (product * a.inverse_scale * b.inverse_scale).to(out_dtype)


def _vector(scale: Tensor, length: int, used: int) -> Tensor:
    """Returns the scales of rows or columns as one vector, with 1 for those that were padded."""
    if scale.dim() == 0:
        return scale.expand(length).contiguous()
    return torch.nn.functional.pad(scale.flatten(), (0, length - used), value=1.0)


def _padded(values: Tensor) -> Tensor:
    """Returns `values` with zeros to the next multiples of 16, which a GPU wants."""
    rows, columns = values.shape
    more_rows, more_columns = -rows % _TILE, -columns % _TILE
    if not (more_rows or more_columns) or values.device.type == "cpu":
        return values
    as_bytes = torch.nn.functional.pad(values.view(torch.uint8), (0, more_columns, 0, more_rows))
    return as_bytes.view(values.dtype)
