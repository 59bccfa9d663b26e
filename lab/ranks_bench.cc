// What ranks take to send each other gradients and weights, whatever they go over; the median of
// several rounds, from rank 0. Run by lab/ranks.
#include <fmt/format.h>

#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "base/stopwatch.h"
#include "kernels/comm/compressed_collectives.h"
#include "kernels/comm/start_collectives.h"

namespace {

using namespace gnomon;

// The slowest rank's median time, since all wait for it.
template <class Body>
double seconds_of(Collectives& ranks, int rounds, Body body) {
  std::vector<double> all;
  for (int round = 0; round <= rounds; ++round) {
    ranks.barrier();
    const Stopwatch watch;
    body();
    double seconds = watch.read().seconds;
    ranks.all_reduce_max(std::span(&seconds, 1));
    if (round > 0) all.push_back(seconds);  // the first one is for the memory
  }
  return median(all);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t elements = argc > 1 ? std::atoll(argv[1]) : 10'573'120;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  const auto ranks = start_collectives(60);
  const WireLayout layout(Partition::even(elements, ranks->size(), WireLayout::kBlock), {0});
  CompressedCollectives wires(*ranks, layout, 1);
  std::vector<float> gradients(static_cast<size_t>(elements), 0.125f);
  std::vector<bf16> weights(static_cast<size_t>(elements), to_bf16(0.5f));
  double value = 1;
  const WireFormat full, codes = wire_format_from_name("e5m2");
  const double sum = seconds_of(*ranks, rounds, [&] { wires.reduce_scatter(full, gradients); });
  const double share =
      seconds_of(*ranks, rounds, [&] { wires.all_gather(full, std::span(weights)); });
  const double coded = seconds_of(*ranks, rounds, [&] { wires.reduce_scatter(codes, gradients); });
  const double small =
      seconds_of(*ranks, rounds * 20, [&] { ranks->all_reduce_sum(std::span(&value, 1)); });
  if (ranks->rank() == 0) {
    fmt::print("{} {:.3f} {:.3f} {:.3f} {:.1f}\n", ranks->name(), 1e3 * sum, 1e3 * share,
               1e3 * coded, 1e6 * small);
  }
  return 0;
}
