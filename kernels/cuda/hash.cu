#include "base/hash.h"
#include "kernels/cuda/hash.h"
#include "kernels/cuda/kernel.h"

namespace gnomon::cuda {
namespace {

constexpr int64_t kWord = sizeof(uint64_t);

// Sums of integers have no order.
__global__ void hash_kernel(const uint64_t* __restrict__ words, int64_t count, int last_bytes,
                            uint64_t first, uint64_t* sum) {
  GNOMON_SHARED(uint64_t, room, [kWarp]);
  uint64_t own = 0;
  for (int64_t i = global_thread(); i < count; i += all_threads()) {
    own += PlacedHash::term(first + static_cast<uint64_t>(i), words[i]);
  }
  if (last_bytes > 0 && global_thread() == 0) {
    uint64_t last = 0;
    const auto* bytes = reinterpret_cast<const unsigned char*>(words + count);
    for (int i = 0; i < last_bytes; ++i) last |= uint64_t{bytes[i]} << (8 * i);
    own += PlacedHash::term(first + static_cast<uint64_t>(count), last);
  }
  own = block_reduce(own, uint64_t{0}, room, Add());
  if (threadIdx.x == 0) atomicAdd(reinterpret_cast<unsigned long long*>(sum), own);
}

}  // namespace

void hash_terms(const void* x, int64_t bytes, uint64_t first, uint64_t* sum, Stream stream) {
  const int64_t count = bytes / kWord;
  const int64_t wanted = blocks_for(count + 1, kThreads * 4);
  const int64_t blocks = wanted < kBlocksMost ? wanted : kBlocksMost;
  launch("hash", hash_kernel, {.blocks_x = blocks, .threads = kThreads}, stream,
         static_cast<const uint64_t*>(x), count, static_cast<int>(bytes % kWord), first, sum);
}

}  // namespace gnomon::cuda
