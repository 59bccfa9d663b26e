// A job of ranks that exchange bytes over NCCL, or what stands in for it, five times. With an
// argument the mark of that rank's stream is never reached after the third time.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "kernels/cuda/nccl_exchange.h"
#include "kernels/start_collectives.h"

namespace {

using namespace gnomon;

class Mark final : public cuda::StreamMark {
 public:
  explicit Mark(int sets_max) : sets_max_(sets_max) {}
  void set() override { ++sets_; }
  bool reached() override { return sets_ <= sets_max_; }

 private:
  int sets_max_, sets_ = 0;
};

int run(int stopped_rank) {
  const auto ranks = start_collectives(20);
  const int me = ranks->rank(), size = ranks->size();
  const auto exchange = cuda::make_nccl_exchange(
      *ranks, nullptr, std::make_unique<Mark>(me == stopped_rank ? 2 : 1000), 1.0);
  for (int round = 0; round < 5; ++round) {
    std::vector<std::vector<std::byte>> sent, got(static_cast<size_t>(size));
    for (int other = 0; other < size; ++other) {
      sent.emplace_back(100 + 10 * static_cast<size_t>(other), static_cast<std::byte>(me + round));
      got[static_cast<size_t>(other)].resize(100 + 10 * static_cast<size_t>(me));
    }
    exchange->exchange("the test's bytes",
                       std::vector<std::span<const std::byte>>(sent.begin(), sent.end()),
                       std::vector<std::span<std::byte>>(got.begin(), got.end()));
    for (int other = 0; other < size; ++other) {
      for (std::byte value : got[static_cast<size_t>(other)]) {
        if (other != me && value != static_cast<std::byte>(other + round)) {
          throw std::runtime_error("other bytes than were sent");
        }
      }
    }
    // What a rank waits in when its device hangs, and what it does between two exchanges.
    if (round == 2 && me == stopped_rank) pause();
    if (round == 2) usleep(200'000);
  }
  if (me == 0) std::printf("finished\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? std::atoi(argv[1]) : -1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
