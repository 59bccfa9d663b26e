// A checkpoint that is complete on disk.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "protocol/records/member.h"

namespace gnomon {

// What the URI of a checkpoint begins with that only the trainer's process has.
inline constexpr const char* kMemoryScheme = "memory:";

struct Checkpoint {
  int64_t attempt = 1;
  int64_t step = 0;
  std::string uri = {};
  int64_t plan_version = 0;
  int64_t bytes = 0;
  std::string manifest_hash = {};
  std::string weights_hash = {};

  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = Checkpoint;
    v("attempt", &R::attempt, Member{.required = true, .range = kStep});
    v("step", &R::step, Member{.required = true, .range = kStep});
    v("uri", &R::uri,
      Member{.required = true, .text = {.least = 1, .most = 4096}, .help = "Its directory."});
    v("plan_version", &R::plan_version, Member{.required = true, .range = kPlanVersion});
    v("bytes", &R::bytes, Member{.range = kCount});
    v("manifest_hash", &R::manifest_hash, Member{.text = kHash, .help = "Hash of manifest.json."});
    v("weights_hash", &R::weights_hash,
      Member{.text = kHash, .help = "As in the report of that step."});
  }
};

// POST /v1/runs/{run}/checkpoints: a checkpoint is complete on disk.
struct CheckpointReport : Checkpoint {
  double time = 0;

  static constexpr Record kRecord = {"CheckpointReport", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    Checkpoint::describe(v);
    v("time", &CheckpointReport::time, Member{.range = rules::kTime});
  }
};

struct CheckpointRow : Checkpoint {
  int64_t run = 0;
  double reported_at = 0;
  std::optional<double> verified_at = {};
  bool is_protected = false;

  static constexpr Row kRow = {"CheckpointRow", "checkpoints"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = CheckpointRow;
    v("run", &R::run, Member{});
    Checkpoint::describe(v);
    v("reported_at", &R::reported_at, Member{.range = kTime});
    v("verified_at", &R::verified_at,
      Member{.range = kTime, .help = "When it was known to be good; null is not yet."});
    v("protected", &R::is_protected, Member{.help = "It may not be deleted."});
  }
};

}  // namespace gnomon
