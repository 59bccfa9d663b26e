#include "lab/bench/clock.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/philox.h"
#include "base/stopwatch.h"

namespace gnomon {
namespace {

constexpr int kCallsMax = 2000;
constexpr size_t kBlock = 1'048'573;  // prime

std::vector<float> random_block(size_t count, uint64_t key, float spread) {
  std::vector<float> block(count);
  for (size_t i = 0; i < count; ++i) {
    block[i] = spread * (2 * philox_uniform(philox(key, 0, i)[0]) - 1);
  }
  return block;
}

template <class T, class Convert>
void fill(Memory& memory, std::span<T> values, uint64_t key, float spread, Convert convert) {
  if (values.empty()) return;
  std::vector<T> block;
  for (float value : random_block(std::min(kBlock, values.size()), key, spread)) {
    block.push_back(convert(value));
  }
  for (size_t at = 0; at < values.size(); at += block.size()) {
    const size_t count = std::min(block.size(), values.size() - at);
    write_from_host(memory, std::span<const T>(block).first(count), values.subspan(at, count));
  }
}

int calls_for(double seconds, double least_seconds) {
  const double calls = std::ceil(least_seconds / std::max(seconds, 1e-9));
  return static_cast<int>(std::clamp(calls, 1.0, double{kCallsMax}));
}

}  // namespace

void BenchClock::wait() {
  std::byte mark;
  memory_.read(mark_.all().first(1), &mark);
}

double BenchClock::seconds(const BenchWork& work, int calls) {
  work.before();
  wait();
  const Stopwatch watch;
  for (int i = 0; i < calls; ++i) work.work();
  wait();
  return watch.read().seconds / calls;
}

std::vector<BenchTime> BenchClock::medians(const std::vector<BenchWork>& works,
                                           const BenchRounds& rounds) {
  std::vector<BenchTime> found(works.size());
  std::vector<int> calls(works.size(), 0);
  for (size_t i = 0; i < works.size(); ++i) {
    try {
      seconds(works[i], 1);
      calls[i] = calls_for(seconds(works[i], 1), rounds.least_seconds);
    } catch (const Error& error) {
      found[i].error = error.what();
    }
  }
  std::vector<std::vector<double>> all(works.size());
  for (int round = 0; round < rounds.rounds; ++round) {
    for (size_t i = 0; i < works.size(); ++i) {
      if (calls[i] > 0) all[i].push_back(seconds(works[i], calls[i]));
    }
  }
  for (size_t i = 0; i < works.size(); ++i) {
    if (calls[i] > 0) found[i].seconds = median(all[i]);
  }
  return found;
}

void fill_random(Memory& memory, std::span<bf16> values, uint64_t key, float spread) {
  fill(memory, values, key, spread, [](float value) { return to_bf16(value); });
}
void fill_random(Memory& memory, std::span<float> values, uint64_t key, float spread) {
  fill(memory, values, key, spread, [](float value) { return value; });
}

}  // namespace gnomon
