#!/usr/bin/env python3
"""Golden casts from a reference that is not ours: ml_dtypes (and, for E8M3 ... E8M6, which it does not have, rounding
in float64 by numpy). Needs numpy and ml_dtypes; never needed to build, run or test: the files it writes are checked in.

  make_format_goldens.py [--out DIR]     writes the golden files (default: beside this script)
  make_format_goldens.py --check         computes them again and compares; status 1 and the first difference otherwise

Files, columns in the order of COLUMNS, each format first without saturation, then with it ("+sat"):
  bf16_codes.z         the code of every BF16 value: zlib of little-endian uint16 [column][65536], each the difference to
                       the one before it (modulo 2^16), the first of a column to 0
  fp32_checksums.txt   a line for each chunk of 65536 FP32 patterns: the CRC-32 of its codes (little-endian uint16) by
                       column; codes of NaN inputs count as 0xFFFF, conventions for NaN stand in conventions.txt
  conventions.txt      format, input bits, code: NaN, infinity and overflow by ml_dtypes' own convention, no saturation

Without saturation the code is what ml_dtypes' cast gives. With it: x clipped to [-largest, largest], then cast.
"""

import argparse
import pathlib
import sys
import zlib

import ml_dtypes
import numpy as np

CHUNK = 65536
CHUNKS = 153  # 10,027,008 patterns
KEY, STREAM = 2026, 3

ML_DTYPES = {
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
FORMATS = [*ML_DTYPES, "e8m3", "e8m4", "e8m5", "e8m6"]
COLUMNS = [f + suffix for f in FORMATS for suffix in ("", "+sat")]

SPECIALS = np.array(
    [0x00000000, 0x00000001, 0x00000002, 0x00400000, 0x007FFFFF, 0x00800000, 0x00800001, 0x7F7FFFFF, 0x7F7FFFFE,
     0x7F7F7FFF, 0x7F7F8000, 0x7F800000, 0x7F800001, 0x7FBFFFFF, 0x7FC00000, 0x7FFFFFFF], dtype=np.uint32)


def philox(key, stream, index):
    """Philox4x32-10 of base/philox.h for an array of 64-bit indices: four arrays of uint32."""
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    c0, c1 = index & low, index >> shift
    c2 = np.full_like(index, stream & 0xFFFFFFFF)
    c3 = np.full_like(index, stream >> 32)
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0 = np.uint64(0xD2511F53) * c0
        p1 = np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = ((p1 >> shift) ^ c1 ^ np.uint64(k0), p1 & low, (p0 >> shift) ^ c3 ^ np.uint64(k1), p0 & low)
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c.astype(np.uint32) for c in (c0, c1, c2, c3)]


def fp32_patterns(chunk):
    """The chunk's FP32 bit patterns; tests/kernels/fp32_patterns.h is the same in C++."""
    index = np.arange(chunk * CHUNK, (chunk + 1) * CHUNK, dtype=np.uint64)
    w0, w1, w2, w3 = philox(KEY, STREAM, index)
    sign = (w0 & np.uint32(1)) << np.uint32(31)
    kind = (w0 >> np.uint32(1)) % np.uint32(8)
    fraction = w1 & np.uint32(0x7FFFFF)
    exponent = (np.uint32(100) + w3 % np.uint32(50)) << np.uint32(23)
    dropped = np.uint32(14) + w2 % np.uint32(9)
    few_bits = exponent | (fraction >> dropped << dropped)
    nudge = np.where(w2 >> np.uint32(31) != 0, np.uint32(1), np.uint32(0xFFFFFFFF))
    return np.select(
        [kind < 3, kind == 3, kind == 4, kind == 5, kind == 6],
        [w1, sign | fraction, sign | SPECIALS[w1 % np.uint32(len(SPECIALS))], sign | few_bits,
         sign | (few_bits + nudge)],
        sign | exponent | fraction).astype(np.uint32)


def finfo_max(name):
    if name in ML_DTYPES:
        return np.float32(ml_dtypes.finfo(ML_DTYPES[name]).max)
    mantissa_bits = int(name[3:])
    return np.float32((2 - 2.0**-mantissa_bits) * 2.0**127)


def reduced_bf16_codes(name, x):
    """E8Mm: to a multiple of the unit in the last place by float64's exact division and rint, no integer tricks."""
    mantissa_bits = int(name[3:])
    wide = x.astype(np.float64)
    finite = np.isfinite(wide)
    magnitude = np.abs(np.where(finite, wide, 0.0))
    exponent = np.maximum(np.frexp(magnitude)[1] - 1, -126)
    unit = np.ldexp(1.0, exponent - mantissa_bits)
    rounded = np.rint(magnitude / unit) * unit
    rounded = np.where(rounded > finfo_max(name), np.inf, rounded)
    rounded = np.where(finite, rounded, np.where(np.isnan(wide), np.nan, np.inf))
    rounded = np.copysign(rounded, wide)
    return (rounded.astype(np.float32).view(np.uint32) >> np.uint32(23 - mantissa_bits)).astype(np.uint16)


def codes(column, x):
    name, _, saturate = column.partition("+")
    if saturate:
        x = np.clip(x, -finfo_max(name), finfo_max(name))
    if name not in ML_DTYPES:
        return reduced_bf16_codes(name, x)
    cast = x.astype(ML_DTYPES[name])
    return cast.view(np.uint16 if cast.itemsize == 2 else np.uint8).astype(np.uint16)


def check_reduced_bf16():
    """At seven bits our reference must be ml_dtypes' bfloat16."""
    for chunk in range(4):
        x = fp32_patterns(chunk).view(np.float32)
        if not np.array_equal(reduced_bf16_codes("e8m7", x)[~np.isnan(x)], codes("bf16", x)[~np.isnan(x)]):
            sys.exit("the reference for E8M3 ... E8M6 differs from ml_dtypes' bfloat16 at seven bits")


def bf16_codes():
    x = (np.arange(65536, dtype=np.uint32) << np.uint32(16)).view(np.float32)
    columns = np.stack([codes(column, x) for column in COLUMNS])
    deltas = np.diff(columns, axis=1, prepend=np.uint16(0))
    return zlib.compress(deltas.astype("<u2").tobytes(), 9)


def fp32_checksums():
    lines = ["chunk " + " ".join(COLUMNS)]
    for chunk in range(CHUNKS):
        x = fp32_patterns(chunk).view(np.float32)
        sums = []
        for column in COLUMNS:
            c = np.where(np.isnan(x), np.uint16(0xFFFF), codes(column, x))
            sums.append(f"{zlib.crc32(c.astype('<u2').tobytes()):08x}")
        lines.append(f"{chunk} " + " ".join(sums))
    return ("\n".join(lines) + "\n").encode()


def conventions():
    lines = ["# format input_bits code: without saturation, by ml_dtypes"]
    inputs = [0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0xFF7FFFFF]
    for name, dtype in ML_DTYPES.items():
        for bits in inputs:
            code = codes(name, np.array([bits], dtype=np.uint32).view(np.float32))[0]
            lines.append(f"{name} {bits:08x} {code:x}")
    return ("\n".join(lines) + "\n").encode()


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description="Golden casts by ml_dtypes; see the head of this file.")
    parser.add_argument("--out", type=pathlib.Path, default=here, help="where to write (default: beside the script)")
    parser.add_argument("--check", action="store_true", help="compare with the files in --out instead of writing")
    arguments = parser.parse_args()
    np.seterr(all="ignore")  # overflow and NaN are what this is about
    check_reduced_bf16()
    different = False
    for name, make in [("conventions.txt", conventions), ("bf16_codes.z", bf16_codes),
                       ("fp32_checksums.txt", fp32_checksums)]:
        content = make()
        path = arguments.out / name
        if not arguments.check:
            path.write_bytes(content)
            print(f"{path}: {len(content)} bytes")
            continue
        kept = path.read_bytes()
        if path.suffix == ".z":  # another zlib may pack the same bytes otherwise
            content, kept = zlib.decompress(content), zlib.decompress(kept)
        if content == kept:
            print(f"{name}: equal")
        else:
            at = next((i for i, (a, b) in enumerate(zip(content, kept)) if a != b), min(len(content), len(kept)))
            print(f"{name}: differs from byte {at} on (unpacked, if packed)", file=sys.stderr)
            different = True
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
