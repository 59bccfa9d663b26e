// How work is shared out among threads, and where rows lie.
#pragma once

#include <cstdint>

namespace gnomon::cpu {

// The part of [0, count) that thread `thread` of `threads` works on, in multiples of `grain` where
// possible.
struct Range {
  int64_t begin;
  int64_t end;
};
inline Range share_of(int64_t count, int thread, int threads, int64_t grain = 1) {
  int64_t pieces = (count + grain - 1) / grain;
  int64_t begin = pieces * thread / threads * grain;
  int64_t end = pieces * (thread + 1) / threads * grain;
  return {begin < count ? begin : count, end < count ? end : count};
}

// The distance between rows where 0 means dense.
inline int64_t row_stride(int64_t stride, int64_t width) { return stride == 0 ? width : stride; }

}  // namespace gnomon::cpu
