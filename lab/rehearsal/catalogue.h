// The runs that `gnomon bench detect` records: healthy ones of several configurations, and each
// fault of docs/faults.md at strengths that do and do not harm, every one beside its BF16
// references. docs/studies/detection/README.md says why these.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lab/rehearsal/rehearsal.h"
#include "lab/rehearsal/study_faults.h"

namespace gnomon::rehearsal {

// What a run is for.
//   bf16      every GEMM in BF16, no fault, no core: what the others are compared with. Three of
//             them, two from weights nudged by a rounding error, say what chance does
//   fp8       the same in FP8: what is FP8's own cost, and not the fault's
//   observed  FP8 under the study's policy, which does nothing
//   enforced  FP8 under the study's policy
//   half      as observed, but half of every 50 steps is replayed: only in the study "budget"
struct CatalogueRun {
  std::string role;
  std::string configuration;
  std::string fault;  // "none", or kind and strength: "scale_shift:+6"
  int64_t seed = 1;
  int64_t perturb = 0;

  // "current-96.scale_shift=+6.seed1.observed.jsonl"
  std::string file_name() const;
};

struct CatalogueOptions {
  std::string study = "dense";
  int64_t seeds = 5;
  int64_t first_seed = 1;
  std::string only = {};  // a fault's kind, or "none"; empty = all
  std::string role = {};  // empty = all
};

// Healthy runs of every configuration and seed; of each fault one run for each seed, in
// configurations that take turns. References first, so that whatever is there can be judged.
std::vector<CatalogueRun> catalogue(const CatalogueOptions& options);

// `data`: a dataset directory (bytes). `scratch`: as in RunSetup. Throws ConfigError for names that
// are none of those above.
RunSetup setup_of(const Study& study, const CatalogueRun& run, const std::filesystem::path& data,
                  const std::filesystem::path& scratch);

// What should be found in a run with these faults (docs/faults.md): verdicts that are right, and
// the sites one of which a pin must contain; no sites where none is guilty.
struct Truth {
  std::vector<std::string> verdicts;
  std::vector<std::string> sites;
};
Truth truth_of(const EngineConfig& engine, const PrecisionPlan& plan);

}  // namespace gnomon::rehearsal
