// A job of ranks in which rank 1, or the one that leads, does what the argument says.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/comm/start_collectives.h"
#include "trainer/engine/engine_ranks.h"

namespace {

int run(const char* trouble) {
  auto ranks = gnomon::start_collectives(1.0);
  auto is = [&](const char* kind) { return std::strcmp(trouble, kind) == 0; };
  const bool guilty = ranks->rank() == 1;
  ranks->barrier();
  if (guilty && is("killed")) std::raise(SIGKILL);
  if (guilty && is("stopped")) std::raise(SIGSTOP);
  if (is("busy")) {
    std::string text = guilty ? "awake" : "";
    if (guilty) {
      sleep(3);
    } else {
      ranks->expect_pause();
    }
    ranks->broadcast_text(text, 1);
    if (ranks->rank() == 0) std::printf("%s\n", text.c_str());
    return 0;
  }
  if (is("orphans")) {
    if (guilty) std::raise(SIGKILL);
    // The others are busy with something that is not among the ranks.
    while (true) pause();
  }
  if (guilty && is("hangs")) {
    // Never comes to the next operation, and does not end on its own.
    while (true) pause();
  }
  if (guilty && is("leaves")) ranks->abort("cannot go on");
  if (is("throws")) {
    return gnomon::lead_or_follow(
        *ranks, [](gnomon::EngineRanks&) -> int { throw std::runtime_error("what it was"); });
  }
  if (guilty && is("other")) ranks->barrier();
  // Rank 1 sends less than the others expect, or more.
  const size_t usual = 100000;
  const size_t count = guilty && is("short")  ? usual - 128
                       : guilty && is("long") ? usual + 12800
                                              : usual;
  std::vector<float> values(count, 1.0f);
  auto parts = gnomon::Partition::even(static_cast<int64_t>(count), ranks->size(), 128);
  ranks->reduce_scatter(values, parts);
  ranks->barrier();
  if (ranks->rank() == 0) std::printf("finished\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "none");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
