#include "lab/rehearsal/catalogue.h"

#include <fmt/format.h>

#include <algorithm>

namespace gnomon::rehearsal {
namespace {

constexpr int64_t kBurnInSteps = 80;  // the loss of the dense study falls steeply before

EngineConfig engine_of(const Study& study, const Configuration& of, int64_t seed) {
  EngineConfig engine;
  engine.model.layers = of.layers;
  engine.model.width = of.width;
  engine.model.heads = of.heads;
  engine.model.kv_heads = 2;
  engine.model.ffn = of.ffn;
  engine.model.vocabulary = 257;
  engine.model.context = 64;
  engine.batch = {.sequences = 8, .tokens = 64, .accumulation = 1};
  engine.optimizer.learning_rate = of.learning_rate;
  engine.optimizer.warmup_steps = study.warmup_steps;
  engine.optimizer.total_steps = study.steps;
  engine.seed = seed;
  engine.heldout_sequences = 64;
  return engine;
}

decide::Policy policy_of(const Study& study, const std::string& role) {
  decide::Policy policy;
  policy.mode = role == "enforced" ? decide::Mode::kEnforce : decide::Mode::kObserve;
  policy.economics.spare_fraction = 1;
  if (study.every_step_in_a_window) {
    policy.window.every = study.checkpoint_every;
    policy.window.steps = study.checkpoint_every;
    policy.detector.burn_in_steps = kBurnInSteps;
  }
  if (role == "half")
    policy.window = {.every = study.checkpoint_every, .steps = study.checkpoint_every / 2};
  return policy;
}

// Configurations take turns, so that each fault is seen under several recipes and sizes.
const Configuration& turn(const Study& study, const std::string& fault, size_t number) {
  if (fault.starts_with("frozen_amax")) return configuration(study, "delayed-64");
  return study.configurations[number % study.configurations.size()];
}

void add_references(const Study& study, std::vector<CatalogueRun>& runs,
                    const std::string& configuration, int64_t seed) {
  const int64_t twins = seed <= study.twins_to_seed ? 2 : 0;
  for (const char* role : {"bf16", "fp8"}) {
    for (int64_t perturb = 0; perturb <= twins; ++perturb) {
      const bool there = std::ranges::any_of(runs, [&](const CatalogueRun& run) {
        return run.role == role && run.configuration == configuration && run.seed == seed &&
               run.perturb == perturb;
      });
      if (!there) runs.push_back({role, configuration, "none", seed, perturb});
    }
  }
}

}  // namespace

std::string CatalogueRun::file_name() const {
  const std::string variant = perturb == 0 ? "" : fmt::format("-{}", perturb);
  std::string wrong = fault;
  std::ranges::replace(wrong, ':', '=');
  return fmt::format("{}.{}.seed{}.{}{}.jsonl", configuration, wrong, seed, role, variant);
}

std::vector<CatalogueRun> catalogue(const CatalogueOptions& options) {
  const Study& study = study_from_name(options.study);
  std::vector<std::string> roles = {"observed", "enforced"};
  if (!study.every_step_in_a_window) roles.emplace_back("half");
  std::vector<CatalogueRun> references, runs;
  const auto wanted = [&](const std::string& fault) {
    return options.only.empty() || fault.substr(0, fault.find(':')) == options.only;
  };
  const auto add = [&](const std::string& name, const std::string& fault, int64_t seed) {
    add_references(study, references, name, seed);
    for (const std::string& role : roles) {
      // What a lie costs is not asked: weights are as healthy ones.
      const bool lies = fault.starts_with("liar");
      if (role == "half" && (lies || seed > study.twins_to_seed)) continue;
      runs.push_back({role, name, fault, seed});
    }
  };
  for (int64_t seed = options.first_seed; seed < options.first_seed + options.seeds; ++seed) {
    if (wanted("none")) {
      for (const Configuration& each : study.configurations) add(each.name, "none", seed);
    }
    const std::vector<StudyCase> all = study_cases(study, 1);
    for (size_t f = 0; f < all.size(); ++f) {
      if (!wanted(all[f].name)) continue;
      add(turn(study, all[f].name, f + static_cast<size_t>(seed - 1)).name, all[f].name, seed);
    }
  }
  references.insert(references.end(), runs.begin(), runs.end());
  std::erase_if(references, [&](const CatalogueRun& run) {
    return !options.role.empty() && run.role != options.role;
  });
  return references;
}

RunSetup setup_of(const Study& study, const CatalogueRun& run, const std::filesystem::path& data,
                  const std::filesystem::path& scratch) {
  const Configuration& of = configuration(study, run.configuration);
  const StudyCase wrong = study_case(study, run.fault, of.layers);
  RunSetup setup;
  setup.configuration = run.configuration;
  setup.fault = run.fault;
  setup.engine = engine_of(study, of, run.seed);
  setup.engine.data = data.string();
  setup.engine.faults = wrong.faults;
  setup.lie = wrong.lie;
  setup.lies_from = study.fault_from;
  if (run.role != "bf16") {
    setup.plan = PrecisionPlan::fp8(of.recipe);
    if (of.recipe == Recipe::kDelayed) setup.plan.rules.back().amax_history = 16;
    if (run.fault.starts_with("fp8_second_moment")) {
      setup.plan = setup.plan.with_run({.second_moment = "fp8"});
    }
    // 257 bytes and no more: no multiple of a tile.
    setup.plan.allow_ragged_tiles = true;
  }
  setup.policy = policy_of(study, run.role);
  setup.watched = run.role != "bf16" && run.role != "fp8";
  setup.steps = study.steps;
  setup.checkpoint_every = study.checkpoint_every;
  setup.perturb = run.perturb;
  setup.scratch = scratch;
  return setup;
}

namespace {

void add_verdicts(Truth& truth, FaultOrigin origin) {
  const auto add = [&](std::initializer_list<const char*> names) {
    truth.verdicts.insert(truth.verdicts.end(), names.begin(), names.end());
  };
  switch (origin) {
    case FaultOrigin::kNumerics:
      return add({"fp8_numerics", "scale_drift"});
    case FaultOrigin::kKernel:
      return add({"kernel_bug"});
    case FaultOrigin::kTransientHardware:
      return add({"transient_fault"});
    case FaultOrigin::kPersistentHardware:
      return add({"persistent_fault"});
    case FaultOrigin::kDataMismatch:
      return add({"data_mismatch"});
    case FaultOrigin::kGeneric:
      return add({"generic_spike"});
  }
}

}  // namespace

Truth truth_of(const EngineConfig& engine, const PrecisionPlan& plan) {
  Truth truth;
  for (const Fault& fault : engine.faults) {
    const FaultOrigin origin = fault_traits(fault.kind).origin;
    add_verdicts(truth, origin);
    if (origin != FaultOrigin::kNumerics && origin != FaultOrigin::kKernel) continue;
    if (fault.kind == FaultKind::kFp8SecondMoment && plan.of_run().second_moment == "fp8") {
      truth.sites.emplace_back("optimizer.second_moment");
      continue;
    }
    for (const std::string& site : engine.model.sites()) {
      if (site_matches(fault.site, site, engine.model.layers)) truth.sites.push_back(site);
    }
  }
  return truth;
}

}  // namespace gnomon::rehearsal
