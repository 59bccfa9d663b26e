// What a result's bits depend on. Bits are compared only between equal fingerprints.
#pragma once

#include <string>

#include "protocol/records/member.h"

namespace gnomon {

inline constexpr size_t kLibrariesBytesMax = 1000;

// What a result's bits depend on. Bits are compared only between equal fingerprints.
struct Fingerprint {
  std::string device;
  std::string backend;
  std::string libraries;
  std::string build;
  int world_size = 1;
  int threads = 1;
  bool operator==(const Fingerprint&) const = default;

  static constexpr Record kRecord = {
      "Fingerprint",
      "What a result's bits depend on. Bits are compared only between equal fingerprints."};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = Fingerprint;
    v("device", &R::device, Member{.required = true, .help = "Such as NVIDIA H200."});
    v("backend", &R::backend,
      Member{.required = true, .help = "`cpu` or `cuda`, or another program's own."});
    v("libraries", &R::libraries,
      Member{.required = true,
             .text = {.most = kLibrariesBytesMax},
             .help = "Such as cuBLASLt 13.0."});
    v("build", &R::build, Member{.required = true, .help = "Version and revision of the program."});
    v("world_size", &R::world_size, Member{.required = true, .range = {1, 1e7}, .help = "Ranks."});
    v("threads", &R::threads,
      Member{.required = true,
             .range = {0, 1e6},
             .help = "Threads of each rank; 0 where no bit depends on them."});
  }
};

}  // namespace gnomon
