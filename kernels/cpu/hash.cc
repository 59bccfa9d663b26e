#include "base/hash.h"

#include "kernels/cpu/ops.h"

namespace gnomon::cpu {

uint64_t hash_terms(int threads, std::span<const std::byte> x, uint64_t first) {
  constexpr int64_t kWord = sizeof(uint64_t);
  uint64_t sum = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : sum)
  for (int thread = 0; thread < threads; ++thread) {
    const Range range = share_of(std::ssize(x), thread, threads, kWord);
    sum += PlacedHash::terms(x.data() + range.begin, static_cast<size_t>(range.end - range.begin),
                             first + static_cast<uint64_t>(range.begin / kWord));
  }
  return sum;
}

}  // namespace gnomon::cpu
