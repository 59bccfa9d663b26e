// What work on the device is given, without the toolkit's headers.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace gnomon::cuda {

using Stream = CUstream_st*;  // cudaStream_t; nullptr is the default stream

inline constexpr int kThreads = 256;              // of a block, where nothing asks for others
inline constexpr int64_t kMultiprocessors = 132;  // of Hopper; a guess elsewhere
inline constexpr int64_t kBlocksMost = kMultiprocessors * 8;  // of kThreads, at once

inline constexpr int kSide = 128;  // of the piece of a matrix that a block casts

// A kernel's blocks, the threads of each, and the dynamic shared memory of each.
struct Grid {
  int64_t blocks_x = 1, blocks_y = 1, blocks_z = 1;
  int threads = kThreads;
  int64_t shared_bytes = 0;
};

}  // namespace gnomon::cuda
