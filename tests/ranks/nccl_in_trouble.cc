// A job of ranks that exchange bytes over NCCL, or what stands in for it, five times. The first
// argument is a rank whose stream is not sound, the second says how (1 hangs, 2 hangs late, 3 fails
// late).
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "base/errors.h"
#include "kernels/comm/nccl_exchange.h"
#include "kernels/comm/start_collectives.h"

namespace {

using namespace gnomon;

// What becomes of one rank's stream.
enum class Stream {
  kSound,
  kHangs,      // after the third exchange
  kHangsLate,  // after the fourth, which begins while the watchdog looks at the third
  kFailsLate,  // then, and the device says so
};

class Mark final : public cuda::StreamMark {
 public:
  explicit Mark(Stream stream) : stream_(stream) {}
  void set() override { ++sets_; }
  bool reached() override {
    if (stream_ == Stream::kSound) return true;
    if (stream_ == Stream::kHangs) return sets_ <= 2;
    if (sets_ == 3) usleep(300'000);
    if (sets_ <= 3) return true;
    if (stream_ == Stream::kFailsLate) throw Error("an illegal address");
    return false;
  }

 private:
  Stream stream_;
  int sets_ = 0;
};

int run(int stopped_rank, Stream stopped) {
  const auto ranks = start_collectives(20);
  const int me = ranks->rank(), size = ranks->size();
  const auto exchange = cuda::make_nccl_exchange(
      *ranks, nullptr, std::make_unique<Mark>(me == stopped_rank ? stopped : Stream::kSound), 1.0);
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
    if (me == stopped_rank && round == (stopped == Stream::kHangs ? 2 : 3)) pause();
    if (round == 2) usleep(me == stopped_rank ? 100'000 : 200'000);
    // The others want nothing more of the rank that hangs: it alone can say so, which ends them.
    if (round == 3 && stopped_rank >= 0 && stopped != Stream::kHangs) pause();
  }
  if (me == 0) std::printf("finished\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? std::atoi(argv[1]) : -1,
               argc > 2 ? static_cast<Stream>(std::atoi(argv[2])) : Stream::kHangs);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
