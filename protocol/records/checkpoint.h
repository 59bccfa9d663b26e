// A checkpoint that is complete on disk.
#pragma once

#include <cstdint>
#include <string>

#include "protocol/records/member.h"

namespace gnomon {

// POST /v1/runs/{run}/checkpoints: a checkpoint is complete on disk.
struct CheckpointReport {
  int64_t attempt = 1;
  int64_t step = 0;
  std::string uri;
  int64_t plan_version = 0;
  int64_t bytes = 0;
  std::string manifest_hash;
  std::string weights_hash;
  double time = 0;

  static constexpr Record kRecord = {"CheckpointReport", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = CheckpointReport;
    v("attempt", &R::attempt, Member{.required = true, .range = kStep});
    v("step", &R::step, Member{.required = true, .range = kStep});
    v("uri", &R::uri,
      Member{.required = true, .text = {.least = 1, .most = 4096}, .help = "Its directory."});
    v("plan_version", &R::plan_version, Member{.required = true, .range = kPlanVersion});
    v("bytes", &R::bytes, Member{.range = kCount});
    v("manifest_hash", &R::manifest_hash, Member{.text = kHash, .help = "Of manifest.json."});
    v("weights_hash", &R::weights_hash,
      Member{.text = kHash, .help = "As in the report of that step."});
    v("time", &R::time, Member{.range = kTime});
  }
};

}  // namespace gnomon
