// The ground truth of a simulated run beside what the decision core said: which alarms had a cause,
// what each fault did, how long it took to be seen, what was done without one. Private to a run
// while it lasts; the Tally is what remains of it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "controller/decide/events.h"
#include "lab/simulate/faults.h"

namespace gnomon::simulate {

// The truth of an alarm: a fault's kind, a verifier that computes wrongly, or nothing.
inline constexpr size_t kVerifierCause = kFaultKinds;
inline constexpr size_t kNoCause = kFaultKinds + 1;
inline constexpr size_t kCauses = kFaultKinds + 2;
std::string cause_name(size_t cause);  // "numerics", ..., "wrong_verifier", "nothing"

inline constexpr std::array<const char*, 12> kVerdicts = {
    "fp8_numerics",     "kernel_bug",    "scale_drift",   "transient_fault",
    "persistent_fault", "data_mismatch", "generic_spike", "verifier_fault",
    "chance",           "accepted_gap",  "unexplained",   "other"};
// True when a verdict is what the cause calls for; several may be.
bool is_right(size_t cause, size_t verdict);

// Damage of the loss, in per cent, from which a fault is called harmful.
inline constexpr double kHarmPercent = 0.1;

struct FaultTally {
  FaultKind kind = FaultKind::kNumerics;
  double size = 0;
  double harm_percent = 0;    // added to the loss, whether it was taken back or not
  bool alarmed = false;       // an alarm looked into what it did
  bool answered = false;      // and its verdict was right
  int64_t delay_windows = 0;  // shadows from its first step to the alarm's, that included
  int64_t delay_steps = 0;    // trained until the alarm
  bool harmful() const { return !(harm_percent < kHarmPercent); }
};

struct Tally {
  std::string outcome;          // completed, held, endless (it went back again and again)
  int64_t windows = 0;          // shadows measured
  int64_t healthy_windows = 0;  // of them, those in which nothing was wrong
  int64_t skipped_windows = 0, failed_windows = 0;
  int64_t alarms = 0;
  int64_t false_alarms = 0;  // nothing was wrong
  int64_t actions = 0;
  int64_t unfounded_actions = 0;  // blamed on FP8 or the machine, without a fault of either
  int64_t returns = 0, holds = 0, crashes = 0, replays = 0, verifier_deaths = 0;
  int64_t pins = 0, right_pins = 0;  // all guilty sites among them
  std::vector<FaultTally> faults;    // that did anything
  std::array<std::array<int32_t, kVerdicts.size()>, kCauses> verdicts = {};

  int64_t trained = 0, lost = 0, kept = 0;   // steps
  int64_t bf16_steps = 0, pinned_steps = 0;  // trained
  double seconds = 0;                        // of the trainer, from its first step to its last
  double verification_seconds = 0;           // of them, training waited for replays
  double spare_seconds = 0;                  // replays on verifiers
  double damage_percent = 0;                 // of the weights at the end; NaN: not finite
  double net_speedup = 0;                    // with everything paid but the damage
  double net_speedup_by_core = 0;            // what the core's own account says
  double hazard_by_core = 0;                 // what it has learned
  std::vector<std::string> problems;         // what must not happen
};

class GroundTruth {
 public:
  // `sites` in the order of the faults' bits; `every`: steps between windows; `inline_replays`: the
  // trainer's own device replays, and so what its broken hardware does shows in no gap. Both faults
  // and sites must outlive this object.
  GroundTruth(const std::vector<Fault>& faults, const std::vector<std::string>& sites,
              int64_t every, bool inline_replays);

  // The fault did something to the run in this step, and this much to its loss.
  void record_fault(size_t fault, int64_t attempt, int64_t step, int64_t trained,
                    double harm_percent);
  void record_lie(int64_t window) { lies_.push_back(window); }  // its shadow was computed wrongly
  void record_effect(const decide::Effect& effect, int64_t trained);
  // Takes what is known about the faults into the tally.
  void finish();

  Tally tally;

 private:
  struct Known {
    bool felt = false;
    int64_t attempt = 0;
    int64_t first = 0;                             // step of that attempt it acted in
    std::deque<std::pair<int64_t, double>> marks;  // newest steps it acted in, harm in per cent
    int64_t since_trained = 0;
    double harm_percent = 0;
    std::vector<int64_t> windows;  // shadows that end after its first step, until its alarm
    FaultTally result;
  };
  struct Alarm {
    int64_t window = 0;
    size_t cause = kNoCause;
    std::optional<size_t> fault;
  };

  void opened(const decide::OpenWindow& window);
  void closed(const decide::CloseWindow& window);
  void decided(const decide::RecordDecision& decision, int64_t trained);
  void alarmed(const decide::RecordDecision& decision, int64_t trained);
  void judged(const decide::RecordDecision& decision);
  void acted(const decide::RecordDecision& decision);
  const Alarm* alarm_of(int64_t window) const;
  // What a fault did in steps start + 1 … end: its harm, absent when it did not act in them.
  std::optional<double> harm_in(size_t fault, int64_t attempt, int64_t start, int64_t end) const;
  // The faults that a kind of alarm can be about.
  enum class Sign { kGap, kStep, kHit, kOffset, kAny };
  bool shows(FaultKind kind, Sign sign) const;
  // The fault with the most harm among those that show so in these steps.
  std::optional<size_t> guilty(Sign sign, int64_t attempt, int64_t start, int64_t end) const;

  struct Open {
    int64_t window = 0;
    bool shadow = false;  // or a long fork
    bool incident = false;
    int64_t attempt = 0;
    int64_t start = 0, end = 0;
  };
  const std::vector<Fault>& faults_;
  const std::vector<std::string>& sites_;
  int64_t every_;
  bool inline_replays_;
  std::vector<Known> known_;
  std::vector<size_t> felt_;  // faults that did anything
  std::vector<Open> open_;
  std::vector<Alarm> alarms_;
  std::optional<Alarm> judged_;  // the newest that had a verdict
  std::vector<int64_t> lies_;
};

}  // namespace gnomon::simulate
