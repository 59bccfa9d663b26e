#include "lab/simulate/ground_truth.h"

#include <algorithm>
#include <cmath>

namespace gnomon::simulate {
namespace {

constexpr size_t kAlarmsKept = 16;
constexpr int64_t kStepsBack = 50;  // a jump of the loss may pass the threshold only later
constexpr size_t kMarksKept = 1024;
constexpr int64_t kWindowsBack = 2;  // evidence of a fault that is over may still bring an alarm

size_t verdict_index(const std::string& name) {
  const auto found = std::find(kVerdicts.begin(), kVerdicts.end(), name);
  return std::min(static_cast<size_t>(found - kVerdicts.begin()), kVerdicts.size() - 1);
}

// The trainer felt it in this attempt alone; the others come again when their steps do.
bool of_attempt(const Fault& fault, int64_t felt_in, int64_t attempt) {
  return comes_again(fault.kind) || felt_in == attempt;
}

}  // namespace

std::string cause_name(size_t cause) {
  if (cause == kVerifierCause) return "wrong_verifier";
  if (cause == kNoCause) return "nothing";
  return std::string(fault_kind_name(static_cast<FaultKind>(cause)));
}

bool is_right(size_t cause, size_t verdict) {
  const std::string_view name = kVerdicts[verdict];
  if (cause == kVerifierCause) return name == "verifier_fault" || name == "chance";
  if (cause == kNoCause) return name == "chance" || name == "accepted_gap";
  switch (static_cast<FaultKind>(cause)) {
    case FaultKind::kNumerics:
      return name == "fp8_numerics" || name == "accepted_gap";
    case FaultKind::kOverflow:
      return name == "fp8_numerics";
    case FaultKind::kKernelBug:
      return name == "kernel_bug" || name == "accepted_gap";
    case FaultKind::kScaleDrift:
      return name == "scale_drift";
    case FaultKind::kBitFlip:
      return name == "transient_fault";
    case FaultKind::kHardware:  // the first time on a host nobody can tell them apart
      return name == "persistent_fault" || name == "transient_fault";
    case FaultKind::kSkippedBatch:
      return name == "data_mismatch";
    case FaultKind::kSpike:
      return name == "generic_spike";
  }
  return false;
}

GroundTruth::GroundTruth(const std::vector<Fault>& faults, const std::vector<std::string>& sites,
                         int64_t every, bool inline_replays)
    : faults_(faults),
      sites_(sites),
      every_(every),
      inline_replays_(inline_replays),
      known_(faults.size()) {}

void GroundTruth::record_fault(size_t fault, int64_t attempt, int64_t step, int64_t trained,
                               double harm_percent) {
  Known& known = known_[fault];
  if (!known.felt) {
    known.felt = true;
    known.since_trained = trained;
    felt_.push_back(fault);
  }
  if (known.attempt != attempt) {
    known.attempt = attempt;
    known.first = step;
    known.windows.clear();
    known.marks.clear();
  }
  known.marks.emplace_back(step, harm_percent);
  if (known.marks.size() > kMarksKept) known.marks.pop_front();
  known.harm_percent += harm_percent;
}

std::optional<double> GroundTruth::harm_in(size_t fault, int64_t attempt, int64_t start,
                                           int64_t end) const {
  const Known& known = known_[fault];
  if (!of_attempt(faults_[fault], known.attempt, attempt)) return std::nullopt;
  std::optional<double> harm;
  for (auto mark = known.marks.rbegin(); mark != known.marks.rend(); ++mark) {
    if (mark->first <= start) break;
    if (mark->first <= end) harm = harm.value_or(0) + mark->second;
  }
  return harm;
}

bool GroundTruth::shows(FaultKind kind, Sign sign) const {
  const bool of_step = kind == FaultKind::kOverflow || kind == FaultKind::kSpike;
  const bool of_offset = kind == FaultKind::kScaleDrift || kind == FaultKind::kKernelBug;
  switch (sign) {
    case Sign::kAny:
      return true;
    case Sign::kStep:
      return of_step;
    case Sign::kHit:  // as large as it is, one step shows it too
      return !comes_again(kind);
    case Sign::kOffset:
      return of_offset;
    case Sign::kGap:
      return !of_step && kind != FaultKind::kScaleDrift &&
             !(inline_replays_ && kind == FaultKind::kHardware);
  }
  return false;
}

std::optional<size_t> GroundTruth::guilty(Sign sign, int64_t attempt, int64_t start,
                                          int64_t end) const {
  std::optional<size_t> most;
  std::pair<double, bool> most_harm = {-1, false};  // of equals one that no alarm has found yet
  for (const size_t index : felt_) {
    if (!shows(faults_[index].kind, sign)) continue;
    const std::optional<double> harm = harm_in(index, attempt, start, end);
    if (!harm) continue;
    const std::pair<double, bool> weight = {*harm, !known_[index].result.alarmed};
    if (weight <= most_harm) continue;
    most = index;
    most_harm = weight;
  }
  return most;
}

void GroundTruth::opened(const decide::OpenWindow& window) {
  const int64_t end = window.start_step + window.steps;
  const bool shadow = window.kind == "shadow";
  open_.push_back({window.window, shadow || window.kind == "long", window.kind == "incident",
                   window.attempt, window.start_step, end});
  if (!shadow) return;
  for (const size_t index : felt_) {
    Known& known = known_[index];
    if (!known.result.alarmed && end >= known.first) known.windows.push_back(window.window);
  }
}

void GroundTruth::closed(const decide::CloseWindow& closed) {
  const auto found = std::ranges::find(open_, closed.window, &Open::window);
  if (found == open_.end()) return;
  const Open window = *found;
  open_.erase(found);
  if (!window.shadow) return;
  tally.skipped_windows += closed.outcome == "skipped" ? 1 : 0;
  tally.failed_windows += closed.outcome == "failed" ? 1 : 0;
  if (!closed.d_percent) return;
  tally.windows += 1;
  const bool lied = std::ranges::find(lies_, closed.window) != lies_.end();
  if (!lied && !guilty(Sign::kAny, window.attempt, window.start, window.end))
    tally.healthy_windows += 1;
}

const GroundTruth::Alarm* GroundTruth::alarm_of(int64_t window) const {
  for (auto alarm = alarms_.rbegin(); alarm != alarms_.rend(); ++alarm) {
    if (alarm->window == window) return &*alarm;
  }
  return nullptr;
}

void GroundTruth::alarmed(const decide::RecordDecision& decision, int64_t trained) {
  tally.alarms += 1;
  int64_t attempt = decision.attempt, start = decision.step - 1, end = decision.step;
  Sign sign = Sign::kStep;  // of a step of which no checkpoint is left to be replayed
  const auto window = std::ranges::find(open_, decision.window, &Open::window);
  if (window != open_.end()) {
    attempt = window->attempt, start = window->start, end = window->end;
    const bool offset = decision.sentence.find("at equal weights") != std::string::npos;
    sign = window->incident ? Sign::kStep : offset ? Sign::kOffset : Sign::kGap;
    if (window->incident) start = end - 2;  // a gradient that is not finite shows a step later
  }
  Alarm alarm{decision.window, kNoCause, guilty(sign, attempt, start, end)};
  if (!alarm.fault && sign == Sign::kStep) {
    alarm.fault = guilty(Sign::kHit, attempt, start - kStepsBack, end);
  }
  const bool lied = std::ranges::find(lies_, decision.window) != lies_.end();
  if (!alarm.fault && !lied) {
    if (sign == Sign::kStep) sign = Sign::kGap;
    alarm.fault = guilty(sign, attempt, start - kWindowsBack * every_, end);
  }
  if (alarm.fault) {
    const size_t index = *alarm.fault;
    alarm.cause = static_cast<size_t>(faults_[index].kind);
    Known& known = known_[index];
    if (!known.result.alarmed) {
      known.result.alarmed = true;
      known.result.delay_steps = trained - known.since_trained;
      known.result.delay_windows =
          std::ranges::count_if(known.windows, [&](int64_t id) { return id <= decision.window; });
      known.windows = {};
    }
  } else if (lied) {
    alarm.cause = kVerifierCause;
  }
  tally.false_alarms += alarm.cause == kNoCause ? 1 : 0;
  if (alarms_.size() >= kAlarmsKept) alarms_.erase(alarms_.begin());
  alarms_.push_back(alarm);
}

void GroundTruth::judged(const decide::RecordDecision& decision) {
  const Alarm* alarm = alarm_of(decision.window);
  if (alarm == nullptr) return;  // a window that is not counted: no case
  judged_ = *alarm;
  const size_t verdict = verdict_index(decision.verdict);
  tally.verdicts[alarm->cause][verdict] += 1;
  if (alarm->fault && is_right(alarm->cause, verdict)) known_[*alarm->fault].result.answered = true;
}

void GroundTruth::acted(const decide::RecordDecision& decision) {
  if (!decision.enforced || decision.action == "none" || decision.action == "quarantine") return;
  tally.actions += 1;
  const Alarm* alarm = alarm_of(decision.window);
  // The case of a spike may move to a window of its own.
  if (alarm == nullptr && decision.verdict != "none" && judged_) alarm = &*judged_;
  if (alarm == nullptr) return;  // nobody verifies the run, or a rollback was refused
  const bool founded = alarm->fault && faults_[*alarm->fault].kind != FaultKind::kSpike;
  tally.unfounded_actions += founded ? 0 : 1;
  if (decision.action != "pin" || !founded) return;
  uint64_t pinned = 0;
  for (size_t i = 0; i < sites_.size(); ++i) {
    if (std::ranges::find(decision.sites, sites_[i]) != decision.sites.end())
      pinned |= uint64_t{1} << i;
  }
  tally.pins += 1;
  tally.right_pins += (faults_[*alarm->fault].sites & ~pinned) == 0 ? 1 : 0;
}

void GroundTruth::decided(const decide::RecordDecision& decision, int64_t trained) {
  if (decision.kind == "alarm") return alarmed(decision, trained);
  if (decision.kind == "verdict") return judged(decision);
  if (decision.kind == "action") return acted(decision);
  if (decision.kind == "return" && decision.enforced) tally.returns += 1;
}

void GroundTruth::record_effect(const decide::Effect& effect, int64_t trained) {
  if (const auto* open = std::get_if<decide::OpenWindow>(&effect)) {
    opened(*open);
  } else if (const auto* close = std::get_if<decide::CloseWindow>(&effect)) {
    closed(*close);
  } else if (const auto* decision = std::get_if<decide::RecordDecision>(&effect)) {
    decided(*decision, trained);
  }
}

void GroundTruth::finish() {
  std::ranges::sort(felt_);
  for (const size_t index : felt_) {
    FaultTally result = known_[index].result;
    result.kind = faults_[index].kind;
    result.size = faults_[index].size;
    result.harm_percent = known_[index].harm_percent;
    tally.faults.push_back(result);
  }
}

}  // namespace gnomon::simulate
