#include "lab/rehearsal/study_faults.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.h"

namespace gnomon::rehearsal {
namespace {

constexpr Configuration kDenseConfigurations[] = {
    {"current-96", Recipe::kCurrent, 2, 96, 6, 256, 1e-3},
    {"delayed-64", Recipe::kDelayed, 2, 64, 4, 192, 1.5e-3},
    {"rowwise-64x4", Recipe::kRowwise, 4, 64, 4, 192, 7e-4},
    {"block-128", Recipe::kBlock, 2, 128, 8, 352, 5e-4},
    {"mx-96x3", Recipe::kMx, 3, 96, 6, 256, 1e-3},
};

// Small enough for 20,000 steps in a minute.
constexpr Configuration kBudgetConfigurations[] = {
    {"current-32", Recipe::kCurrent, 2, 32, 2, 96, 2e-3},
    {"delayed-32", Recipe::kDelayed, 2, 32, 2, 96, 2e-3},
    {"rowwise-32", Recipe::kRowwise, 2, 32, 2, 96, 2e-3},
    {"block-32", Recipe::kBlock, 2, 32, 2, 96, 2e-3},
    {"mx-32", Recipe::kMx, 2, 32, 2, 96, 2e-3},
};

constexpr Study kStudies[] = {
    {"dense", 1000, 20, 401, 60, true, 1000, kDenseConfigurations},
    {"budget", 20000, 50, 4001, 200, false, 2, kBudgetConfigurations},
};

// Builds the list of a study for a model whose last down projection is `down`.
class CaseList {
 public:
  CaseList(const Study& study, std::string down)
      : from_(study.fault_from), down_(std::move(down)) {}

  Fault at(FaultKind kind, const std::string& site) const {
    return {.kind = kind, .site = site, .start_step = from_};
  }
  void add(const std::string& strength, const Fault& fault) {
    add(fmt::format("{}:{}", fault_kind_name(fault.kind), strength), std::vector{fault});
  }
  void add(const std::string& name, std::vector<Fault> faults) {
    all.push_back({name, std::move(faults)});
  }

  void numeric();
  void kernel();
  void other();
  void later();
  void lasting();
  void in_pieces();
  void once();
  void lies();

  std::vector<StudyCase> all;

 private:
  Fault shift(int log2, const std::string& site) const {
    Fault fault = at(FaultKind::kScaleShift, site);
    fault.log2_factor = log2;
    return fault;
  }
  Fault flipped(int bit, const std::string& tensor = "weight") const {
    Fault fault = at(FaultKind::kBitFlip, down_ + ".weight");
    fault.tensor = tensor;
    fault.start_step = from_ + 5;
    fault.element = 7;
    fault.bit = bit;
    return fault;
  }
  Fault lasting_for(FaultKind kind, int64_t steps) const {
    Fault fault = at(kind, "");
    fault.start_step = from_ + 5;
    fault.end_step = fault.start_step + steps;
    return fault;
  }
  // For `steps` steps the loader is `ahead` batches ahead.
  Fault skipped_batches(int64_t steps, int64_t ahead) const {
    Fault fault = lasting_for(FaultKind::kSkippedBatch, steps);
    fault.steps = ahead;
    return fault;
  }
  Fault outlier(int log2) const {
    Fault fault = at(FaultKind::kOutlierChannel, down_);
    fault.log2_factor = log2;
    fault.element = 5;
    fault.steps = 60;
    return fault;
  }
  Fault of_format(FaultKind kind, const std::string& site, const std::string& format,
                  int log2 = 0) const {
    Fault fault = at(kind, site);
    fault.format = format;
    fault.log2_factor = log2;
    return fault;
  }
  Fault underflow(int log2) const {
    Fault fault = at(FaultKind::kGradientUnderflow, "*");
    fault.log2_factor = log2;
    return fault;
  }
  Fault accumulation(int bits) const {
    Fault fault = at(FaultKind::kWrongAccumulation, "*");
    fault.fraction_bits = bits;
    return fault;
  }
  Fault dropped(int64_t terms) const {
    Fault fault = at(FaultKind::kDroppedKBlock, down_);
    fault.gemm = "fprop";
    fault.terms = terms;
    return fault;
  }
  Fault stale(int64_t steps) const {
    Fault fault = at(FaultKind::kStaleWeight, "lm_head");
    fault.steps = steps;
    return fault;
  }
  Fault stuck(int bit) const {
    Fault fault = at(FaultKind::kStuckBit, down_);
    fault.tensor = "output";
    fault.element = 3;
    fault.bit = bit;
    return fault;
  }
  Fault rate(double factor) const {
    Fault fault = lasting_for(FaultKind::kLearningRateSpike, 10);
    fault.factor = factor;
    return fault;
  }

  int64_t from_;
  std::string down_;
};

// ---- the dense study: each kind at strengths that do and do not harm

void CaseList::numeric() {
  add("history", at(FaultKind::kFrozenAmax, down_));
  for (int log2 : {3, 6, 8}) add(fmt::format("+{}", log2), shift(log2, down_));
  for (int log2 : {13, 17, 20}) add(fmt::format("{}", log2), outlier(log2));
  for (int log2 : {0, -13, -16}) add(fmt::format("{}", log2), underflow(log2));
  for (const char* format : {"e8m3", "e3m2", "e2m1"}) {
    add(format, of_format(FaultKind::kReducedMantissa, "*", format));
  }
  add("all", at(FaultKind::kE5m2Everywhere, "*"));
  for (const char* format : {"e5m2", "e2m1"}) {
    add(format, of_format(FaultKind::kCoarseRecipe, "lm_head", format));
  }
  for (int log2 : {0, -3, -6}) {
    add(fmt::format("{}", log2), of_format(FaultKind::kFp8SecondMoment, "*", "e4m3", log2));
  }
}

void CaseList::kernel() {
  for (int bits : {13, 6, 4}) add(fmt::format("{}bits", bits), accumulation(bits));
  for (int64_t terms : {4, 16, 96}) add(fmt::format("{}terms", terms), dropped(terms));
  for (int64_t steps : {5, 20, 0}) {
    add(steps == 0 ? "never" : fmt::format("every{}", steps), stale(steps));
  }
}

void CaseList::other() {
  for (int bit : {23, 30}) add(fmt::format("bit{}", bit), flipped(bit));
  for (int bit : {15, 14}) add(fmt::format("bit{}", bit), stuck(bit));
  for (int64_t steps : {1, 10}) {
    add(fmt::format("{}steps", steps), lasting_for(FaultKind::kCorruptBatch, steps));
  }
  for (double factor : {3.0, 10.0, 30.0}) add(fmt::format("{:g}times", factor), rate(factor));
  add("1", skipped_batches(1, 1));
}

void CaseList::later() {
  add("lm_head", at(FaultKind::kFrozenAmax, "lm_head"));
  add("down_proj", at(FaultKind::kE5m2Everywhere, "model.layers.*.mlp.down_proj"));
  add("3in10", skipped_batches(10, 3));
}

// ---- the study at the default budget

void CaseList::lasting() {
  for (int log2 : {6, 8}) add(fmt::format("+{}", log2), shift(log2, down_));
  add("17", outlier(17));
  add("-13", underflow(-13));
  add("e2m1", of_format(FaultKind::kReducedMantissa, "*", "e2m1"));
  add("e2m1", of_format(FaultKind::kCoarseRecipe, "lm_head", "e2m1"));
  add("-3", of_format(FaultKind::kFp8SecondMoment, "*", "e4m3", -3));
  add("6bits", accumulation(6));
  add("16terms", dropped(16));
  add("never", stale(0));
  add("bit15", stuck(15));
}

void CaseList::in_pieces() {
  const auto pieces = [&](int64_t duration, int64_t period) {
    Fault fault = shift(8, down_);
    fault.period = period;
    fault.duration = duration;
    add(fmt::format("pieces:{}of{}", duration, period), {fault});
  };
  pieces(12, 60);
  pieces(4, 97);
  pieces(4, 1009);
  const std::string layer = down_.substr(0, down_.rfind(".mlp."));
  add("several:3sites",
      {shift(6, down_), shift(6, layer + ".mlp.gate_proj"), shift(6, layer + ".self_attn.o_proj")});
  Fault drift = shift(10, down_);
  drift.steps = 6000;
  add("drift:+10", {drift});
  Fault first = shift(6, down_);
  first.start_step = 1;
  add("from_step_1:+6", {first});
  add("with_flip:+6", {shift(6, down_), flipped(23)});
}

void CaseList::once() {
  add("bit23", flipped(23));
  add("gradient_bit30", flipped(30, "gradient"));
  add("10steps", lasting_for(FaultKind::kCorruptBatch, 10));
  add("10times", rate(10));
  add("3in10", skipped_batches(10, 3));
  add("200steps", lasting_for(FaultKind::kRepeatedBatch, 200));
}

void CaseList::lies() {
  for (Lie lie : {Lie::kLow, Lie::kSame, Lie::kBits}) {
    all.push_back({fmt::format("liar:{}", lie_name(lie)), {}, lie});
  }
}

}  // namespace

const char* lie_name(Lie lie) {
  constexpr const char* kNames[] = {"none", "low", "same", "bits"};
  return kNames[static_cast<size_t>(lie)];
}

const Study& study_from_name(const std::string& name) {
  for (const Study& each : kStudies) {
    if (each.name == name) return each;
  }
  throw ConfigError("catalogue", 0, "study", name, "dense, budget");
}

const Configuration& configuration(const Study& study, const std::string& name) {
  std::vector<std::string> names;
  for (const Configuration& each : study.configurations) {
    if (each.name == name) return each;
    names.emplace_back(each.name);
  }
  throw ConfigError("catalogue", 0, "configuration", name,
                    fmt::format("{}", fmt::join(names, ", ")));
}

std::vector<StudyCase> study_cases(const Study& study, int layers) {
  CaseList list(study, fmt::format("model.layers.{}.mlp.down_proj", layers - 1));
  if (study.every_step_in_a_window) {
    list.numeric();
    list.kernel();
    list.other();
    list.later();
  } else {
    list.lasting();
    list.in_pieces();
    list.once();
    list.lies();
  }
  return std::move(list.all);
}

StudyCase study_case(const Study& study, const std::string& name, int layers) {
  if (name == "none") return {name, {}};
  std::vector<std::string> names;
  for (StudyCase& each : study_cases(study, layers)) {
    if (each.name == name) return std::move(each);
    names.push_back(each.name);
  }
  throw ConfigError("catalogue", 0, "fault", name, fmt::format("none, {}", fmt::join(names, ", ")));
}

}  // namespace gnomon::rehearsal
