#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/kernel.h"
#include "kernels/cuda/sort.h"

namespace gnomon::cuda {
namespace {

__global__ void count_up_kernel(int32_t* places, int64_t count) {
  const int64_t i = global_thread();
  if (i < count) places[i] = static_cast<int32_t>(i);
}

int64_t library_bytes(int64_t count) {
  size_t bytes = 0;
  const int32_t* from = nullptr;
  int32_t* to = nullptr;
  check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, from, to, from, to, count),
        "cub::DeviceRadixSort");
  return static_cast<int64_t>(bytes);
}

int64_t places_bytes(int64_t count) {
  return (count * static_cast<int64_t>(sizeof(int32_t)) + 255) / 256 * 256;
}

}  // namespace

int64_t sort_scratch_bytes(int64_t count) { return places_bytes(count) + library_bytes(count); }

void sort_places(const int32_t* tokens, int64_t count, int32_t* sorted, int32_t* order,
                 void* scratch, int64_t scratch_bytes, Stream stream) {
  auto* places = static_cast<int32_t*>(scratch);
  launch("count_up", count_up_kernel, {.blocks_x = blocks_for(count, 256)}, stream, places, count);
  void* rest = static_cast<char*>(scratch) + places_bytes(count);
  auto bytes = static_cast<size_t>(scratch_bytes - places_bytes(count));
  // Radix sorts are stable: equal tokens keep the order of their places.
  check(cub::DeviceRadixSort::SortPairs(rest, bytes, tokens, sorted, places, order, count, 0, 32,
                                        stream),
        "cub::DeviceRadixSort");
}

}  // namespace gnomon::cuda
