// Amaxes, scales and rounded copies on the device. Pointers are of the device's memory, 16-byte
// aligned where rows are; every function returns when the work is on the stream.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/formats.h"
#include "kernels/operand.h"

namespace gnomon::cuda {

// As BackendBase::amax and raise.
void amax(const bf16* x, int64_t count, float* amax, Stream stream);
void raise(const float* amax, float* most, Stream stream);

// scalars[kScale] and [kInverseScale] of a whole tensor, from scalars[kAmax].
void choose_scale(const Rounding& rounding, float* scalars, Stream stream);

// FP8 codes of a whole tensor x[rows, columns] with the scale at scalars[kScale]: as stored, and
// transposed [columns, rows]; either may be null. E4M3 or E5M2; rows and columns are multiples of
// 16.
void cast(Format format, const bf16* x, int64_t rows, int64_t columns, const float* scalars,
          uint8_t* as_stored, uint8_t* transposed, Stream stream);

// Where the scale of tile (i, j) of a grid stands: i·row + j·column.
struct ScaleStrides {
  int64_t row = 0, column = 0;
};

// FP8 codes with a scale for each tile, as quantize_matrix() makes them, and 1/scale of each tile.
// Tiles of one row or one column, 128 long or as long as the matrix, or squares of 128. Codes as in
// cast(). `amaxes` is scratch for max(rows, columns) numbers where tiles are as long as the matrix.
void cast_tiles(const Rounding& rounding, const bf16* x, int64_t rows, int64_t columns,
                uint8_t* as_stored, uint8_t* transposed, float* inverse_scales,
                const ScaleStrides& strides, uint32_t* amaxes, Stream stream);

}  // namespace gnomon::cuda
