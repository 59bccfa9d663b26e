#include "lab/rehearsal/catalogue.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.h"

namespace gnomon::rehearsal {
namespace {

constexpr int64_t kSteps = 1000;
constexpr int64_t kWindow = 20;       // steps
constexpr int64_t kFaultFrom = 401;   // the null is learned over the 20 windows after the warm-up
constexpr int64_t kWarmUp = 60;       // steps
constexpr int64_t kBurnInSteps = 80;  // the loss falls steeply before

struct Configuration {
  const char* name;
  Recipe recipe;
  int layers, width, heads, ffn;
  double learning_rate;
};

constexpr Configuration kConfigurations[] = {
    {"current-96", Recipe::kCurrent, 2, 96, 6, 256, 1e-3},
    {"delayed-64", Recipe::kDelayed, 2, 64, 4, 192, 1.5e-3},
    {"rowwise-64x4", Recipe::kRowwise, 4, 64, 4, 192, 7e-4},
    {"block-128", Recipe::kBlock, 2, 128, 8, 352, 5e-4},
    {"mx-96x3", Recipe::kMx, 3, 96, 6, 256, 1e-3},
};

const Configuration& configuration(const std::string& name) {
  for (const Configuration& each : kConfigurations) {
    if (each.name == name) return each;
  }
  throw ConfigError("catalogue", 0, "configuration", name,
                    fmt::format("{}", fmt::join(configuration_names(), ", ")));
}

struct NamedFault {
  std::string strength;
  Fault fault;
};

Fault of_site(FaultKind kind, const std::string& site) {
  Fault fault;
  fault.kind = kind;
  fault.site = site;
  fault.start_step = kFaultFrom;
  return fault;
}

// For `steps` steps the loader is `ahead` batches ahead.
Fault skipped_batches(int64_t steps, int64_t ahead) {
  Fault fault = of_site(FaultKind::kSkippedBatch, "");
  fault.start_step = kFaultFrom + 5;
  fault.end_step = fault.start_step + steps;
  fault.steps = ahead;
  return fault;
}

// In a model whose last layer is `last`.
std::vector<NamedFault> numeric_faults(const std::string& down) {
  std::vector<NamedFault> all;
  const auto add = [&](const std::string& strength, Fault fault) {
    all.push_back({strength, std::move(fault)});
  };
  add("history", of_site(FaultKind::kFrozenAmax, down));
  for (int log2 : {3, 6, 8}) {
    Fault fault = of_site(FaultKind::kScaleShift, down);
    fault.log2_factor = log2;
    add(fmt::format("+{}", log2), fault);
  }
  for (int log2 : {13, 17, 20}) {
    Fault fault = of_site(FaultKind::kOutlierChannel, down);
    fault.log2_factor = log2;
    fault.element = 5;
    fault.steps = 60;
    add(fmt::format("{}", log2), fault);
  }
  for (int log2 : {0, -13, -16}) {
    Fault fault = of_site(FaultKind::kGradientUnderflow, "*");
    fault.log2_factor = log2;
    add(fmt::format("{}", log2), fault);
  }
  for (const char* format : {"e8m3", "e3m2", "e2m1"}) {
    Fault fault = of_site(FaultKind::kReducedMantissa, "*");
    fault.format = format;
    add(format, fault);
  }
  add("all", of_site(FaultKind::kE5m2Everywhere, "*"));
  for (const char* format : {"e5m2", "e2m1"}) {
    Fault fault = of_site(FaultKind::kCoarseRecipe, "lm_head");
    fault.format = format;
    add(format, fault);
  }
  for (int log2 : {0, -3, -6}) {
    Fault fault = of_site(FaultKind::kFp8SecondMoment, "*");
    fault.format = "e4m3";
    fault.log2_factor = log2;
    add(fmt::format("{}", log2), fault);
  }
  return all;
}

std::vector<NamedFault> kernel_faults(const std::string& down) {
  std::vector<NamedFault> all;
  for (int bits : {13, 6, 4}) {
    Fault fault = of_site(FaultKind::kWrongAccumulation, "*");
    fault.fraction_bits = bits;
    all.push_back({fmt::format("{}bits", bits), fault});
  }
  for (int64_t terms : {4, 16, 96}) {
    Fault fault = of_site(FaultKind::kDroppedKBlock, down);
    fault.gemm = "fprop";
    fault.terms = terms;
    all.push_back({fmt::format("{}terms", terms), fault});
  }
  for (int64_t steps : {5, 20, 0}) {
    Fault fault = of_site(FaultKind::kStaleWeight, "lm_head");
    fault.steps = steps;
    all.push_back({steps == 0 ? "never" : fmt::format("every{}", steps), fault});
  }
  return all;
}

std::vector<NamedFault> other_faults(const std::string& down) {
  std::vector<NamedFault> all;
  for (int bit : {23, 30}) {
    Fault fault = of_site(FaultKind::kBitFlip, down + ".weight");
    fault.start_step = kFaultFrom + 5;
    fault.element = 7;
    fault.bit = bit;
    all.push_back({fmt::format("bit{}", bit), fault});
  }
  for (int bit : {15, 14}) {
    Fault fault = of_site(FaultKind::kStuckBit, down);
    fault.tensor = "output";
    fault.element = 3;
    fault.bit = bit;
    all.push_back({fmt::format("bit{}", bit), fault});
  }
  for (int64_t steps : {1, 10}) {
    Fault fault = of_site(FaultKind::kCorruptBatch, "");
    fault.start_step = kFaultFrom + 5;
    fault.end_step = fault.start_step + steps;
    all.push_back({fmt::format("{}steps", steps), fault});
  }
  for (double factor : {3.0, 10.0, 30.0}) {
    Fault fault = of_site(FaultKind::kLearningRateSpike, "");
    fault.start_step = kFaultFrom + 5;
    fault.end_step = fault.start_step + 10;
    fault.factor = factor;
    all.push_back({fmt::format("{:g}times", factor), fault});
  }
  all.push_back({"1", skipped_batches(1, 1)});
  return all;
}

// A fault's place in the list says in which configurations it runs: what comes later stands last.
std::vector<NamedFault> later_faults() {
  std::vector<NamedFault> all;
  all.push_back({"lm_head", of_site(FaultKind::kFrozenAmax, "lm_head")});
  all.push_back({"down_proj", of_site(FaultKind::kE5m2Everywhere, "model.layers.*.mlp.down_proj")});
  all.push_back({"3in10", skipped_batches(10, 3)});
  return all;
}

std::vector<NamedFault> faults_in(int layers) {
  const std::string down = fmt::format("model.layers.{}.mlp.down_proj", layers - 1);
  std::vector<NamedFault> all = numeric_faults(down);
  for (const auto& more : {kernel_faults(down), other_faults(down), later_faults()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

std::string name_of(const NamedFault& named) {
  return fmt::format("{}:{}", fault_kind_name(named.fault.kind), named.strength);
}

Fault fault_of(const std::string& name, int layers) {
  for (const NamedFault& named : faults_in(layers)) {
    if (name_of(named) == name) return named.fault;
  }
  throw ConfigError("catalogue", 0, "fault", name,
                    fmt::format("none, {}", fmt::join(fault_names(), ", ")));
}

EngineConfig engine_of(const Configuration& of, int64_t seed) {
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
  engine.optimizer.warmup_steps = kWarmUp;
  engine.optimizer.total_steps = kSteps;
  engine.seed = seed;
  engine.heldout_sequences = 64;
  return engine;
}

decide::Policy policy_of(const std::string& role) {
  decide::Policy policy;
  policy.mode = role == "observed" ? decide::Mode::kObserve : decide::Mode::kEnforce;
  policy.window.every = kWindow;
  policy.window.steps = kWindow;
  policy.detector.burn_in_steps = kBurnInSteps;
  policy.economics.spare_fraction = 1;
  return policy;
}

// The configuration in which seed `turn` of a fault runs: they take turns, so that each fault is
// seen under several recipes and sizes.
const Configuration& turn(const std::string& fault, size_t number) {
  if (fault.starts_with("frozen_amax")) return configuration("delayed-64");
  return kConfigurations[number % std::size(kConfigurations)];
}

void add_references(std::vector<CatalogueRun>& runs, const std::string& configuration,
                    int64_t seed) {
  for (const char* role : {"bf16", "fp8"}) {
    for (int64_t perturb : {0, 1, 2}) {
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

std::vector<std::string> configuration_names() {
  std::vector<std::string> names;
  for (const Configuration& each : kConfigurations) names.emplace_back(each.name);
  return names;
}

std::vector<std::string> fault_names() {
  std::vector<std::string> names;
  for (const NamedFault& named : faults_in(1)) names.push_back(name_of(named));
  return names;
}

std::vector<CatalogueRun> catalogue(const CatalogueOptions& options) {
  std::vector<CatalogueRun> references, runs;
  const auto wanted = [&](const std::string& fault) {
    return options.only.empty() || fault.substr(0, fault.find(':')) == options.only;
  };
  const auto add = [&](const std::string& name, const std::string& fault, int64_t seed) {
    add_references(references, name, seed);
    for (const char* role : {"observed", "enforced"}) runs.push_back({role, name, fault, seed});
  };
  for (int64_t i = 0; i < options.seeds; ++i) {
    const int64_t seed = options.first_seed + i;
    if (wanted("none")) {
      for (const Configuration& each : kConfigurations) add(each.name, "none", seed);
    }
    const std::vector<std::string> faults = fault_names();
    for (size_t f = 0; f < faults.size(); ++f) {
      if (!wanted(faults[f])) continue;
      add(turn(faults[f], f + static_cast<size_t>(i)).name, faults[f], seed);
    }
  }
  references.insert(references.end(), runs.begin(), runs.end());
  std::erase_if(references, [&](const CatalogueRun& run) {
    return !options.role.empty() && run.role != options.role;
  });
  return references;
}

RunSetup setup_of(const CatalogueRun& run, const std::filesystem::path& data,
                  const std::filesystem::path& scratch) {
  const Configuration& of = configuration(run.configuration);
  RunSetup setup;
  setup.configuration = run.configuration;
  setup.fault = run.fault;
  setup.engine = engine_of(of, run.seed);
  setup.engine.data = data.string();
  if (run.fault != "none") setup.engine.faults.push_back(fault_of(run.fault, of.layers));
  if (run.role != "bf16") {
    setup.plan = PrecisionPlan::fp8(of.recipe);
    if (of.recipe == Recipe::kDelayed) setup.plan.rules.back().amax_history = 16;
    if (run.fault.starts_with("fp8_second_moment")) {
      setup.plan = setup.plan.with_run({.second_moment = "fp8"});
    }
    // 257 bytes and no more: no multiple of a tile.
    setup.plan.allow_ragged_tiles = true;
  }
  setup.policy = policy_of(run.role);
  setup.watched = run.role == "observed" || run.role == "enforced";
  setup.steps = kSteps;
  setup.checkpoint_every = kWindow;
  setup.perturb = run.perturb;
  setup.scratch = scratch;
  return setup;
}

Truth truth_of(const EngineConfig& engine, const PrecisionPlan& plan) {
  Truth truth;
  if (engine.faults.empty()) return truth;
  const Fault& fault = engine.faults.front();
  const FaultTraits& traits = fault_traits(fault.kind);
  switch (traits.origin) {
    case FaultOrigin::kNumerics:
      truth.verdicts = {"fp8_numerics", "scale_drift"};
      break;
    case FaultOrigin::kKernel:
      truth.verdicts = {"kernel_bug"};
      break;
    case FaultOrigin::kTransientHardware:
      truth.verdicts = {"transient_fault"};
      break;
    case FaultOrigin::kPersistentHardware:
      truth.verdicts = {"persistent_fault"};
      break;
    case FaultOrigin::kDataMismatch:
      truth.verdicts = {"data_mismatch"};
      break;
    case FaultOrigin::kGeneric:
      truth.verdicts = {"generic_spike"};
      break;
  }
  const bool blames =
      traits.origin == FaultOrigin::kNumerics || traits.origin == FaultOrigin::kKernel;
  if (!blames) return truth;
  if (fault.kind == FaultKind::kFp8SecondMoment && plan.of_run().second_moment == "fp8") {
    truth.sites = {"optimizer.second_moment"};
    return truth;
  }
  for (const std::string& site : engine.model.sites()) {
    if (site_matches(fault.site, site, engine.model.layers)) truth.sites.push_back(site);
  }
  return truth;
}

}  // namespace gnomon::rehearsal
