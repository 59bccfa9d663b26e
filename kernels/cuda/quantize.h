// Amaxes, scales and rounded copies on the device. Pointers are of the device's memory, 16-byte
// aligned where rows are; every function returns when the work is on the stream.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/operand.h"
#include "numerics/formats.h"

namespace gnomon::cuda {

// Where a cast adds what it does, if anywhere: `counts` is of the device's memory.
struct Counting {
  CastCounts* counts = nullptr;
  bool amax_known = false;  // of a whole tensor: its scalars[kAmax]
};

// As BackendBase::amax and raise.
void amax(const bf16* x, int64_t count, float* amax, Stream stream);
void raise(const float* amax, float* most, Stream stream);

// scalars[kScale] and [kInverseScale] of a whole tensor, from scalars[kAmax].
void choose_scale(const Rounding& rounding, float* scalars, Stream stream);

// *product = factor · *first · *second; null counts as 1.
void multiply_factors(float factor, const float* first, const float* second, float* product,
                      Stream stream);

// copies[0 .. count) = *value.
void spread(const float* value, int64_t count, float* copies, Stream stream);

// FP8 codes of a whole tensor x[rows, columns] with the scale at scalars[kScale]: as stored, and
// transposed [columns, rows]; either may be null. E4M3 or E5M2; rows and columns are multiples of
// 16.
void cast(Format format, const bf16* x, int64_t rows, int64_t columns, const float* scalars,
          uint8_t* as_stored, uint8_t* transposed, const Counting& counting, Stream stream);

// What SwiGLU is made of, rows of both `stride` elements apart.
struct Gated {
  const bf16* gate = nullptr;
  const bf16* up = nullptr;
  int64_t stride = 0;
};

// y[rows, columns] and its amax, where one is wanted, as swiglu() makes them (elementwise.h), and
// codes of y as cast() makes them, without reading y again.
void swiglu_cast(Format format, const Gated& from, int64_t rows, int64_t columns, bf16* y,
                 float* amax, const float* scalars, uint8_t* as_stored, uint8_t* transposed,
                 const Counting& counting, Stream stream);

// Where the scale of tile (i, j) of a grid stands: i·row + j·column.
struct ScaleStrides {
  int64_t row = 0, column = 0;
};

// FP8 codes with a scale for each tile, as quantize_matrix() makes them, and 1/scale of each tile.
// Tiles of one row or one column, 128 long or as long as the matrix, or squares of 128. Codes as in
// cast(). `amaxes` is scratch for max(rows, columns) numbers where tiles are as long as the matrix.
void cast_tiles(const Rounding& rounding, const bf16* x, int64_t rows, int64_t columns,
                uint8_t* as_stored, uint8_t* transposed, float* inverse_scales,
                const ScaleStrides& strides, uint32_t* amaxes, const Counting& counting,
                Stream stream);

// Copies of any format and any tiles as BF16 values. Those of tiles are divided by their scales
// again (where they are exact so, quantizer.h); of a whole tensor the scale is at scalars[kScale],
// and the values stay multiplied. `amaxes` is scratch for a number per tile.
void round_copy(const Rounding& rounding, const bf16* x, int64_t rows, int64_t columns,
                const float* scalars, bf16* y, uint32_t* amaxes, const Counting& counting,
                Stream stream);

// Zeros for terms [first, first + count) of what is summed over, in a copy whose rows (or columns,
// with `along_rows`) are that: a kernel that loses them. E is uint8_t or bf16.
template <class E>
void lose_terms(E* copy, int64_t rows, int64_t columns, bool along_rows, int64_t first,
                int64_t count, Stream stream);

}  // namespace gnomon::cuda
