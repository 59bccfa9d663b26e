// A run's account: what it has done, what that took, and what it would have taken in BF16 without
// any verification. Facts are added event by event; the statement says the net speed-up and
// where the time went. Plain data of a fixed size.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gnomon::decide {

// The precision of a step: the run's own FP8 plan, that plan with sites pinned to BF16, or BF16.
enum class StepKind { kFp8, kPinned, kBf16 };
inline constexpr StepKind kStepKinds[] = {StepKind::kFp8, StepKind::kPinned, StepKind::kBf16};

inline constexpr size_t kStepTimesKept = 15;     // for a median that no stall moves
inline constexpr int64_t kStepTimesTrusted = 8;  // fewer are not believed
inline constexpr double kStepSecondsMax = 1e7;

// Steps of one kind on one kind of device.
struct StepTimes {
  int64_t steps = 0;
  double seconds = 0;
  std::vector<double> recent;  // seconds of the newest ones, of replays their means
  // `count` steps that took so long on average; they are one of `recent`. False, and nothing
  // changes, unless it is in (0, kStepSecondsMax] and count at least 1.
  bool add(double step_seconds, int64_t count = 1);
  double mean() const;     // 0 without steps
  double typical() const;  // the median of `recent`; 0 without steps
  bool trusted() const { return steps >= kStepTimesTrusted; }
};

enum class Where { kTrainer, kSpare };

struct Account {
  // What the trainer ran, whether it was kept or not, and of those what rollbacks took away.
  StepTimes fp8, pinned, bf16;
  int64_t fp8_lost = 0, pinned_lost = 0, bf16_lost = 0;
  // Replayed steps of verification, in plain BF16 and under the run's own plan: only their ratio
  // is used.
  StepTimes trainer_replay_bf16, spare_replay_fp8, spare_replay_bf16;
  // In seconds of the whole set of training devices: the seconds of devices of which there is one
  // for every four training devices count a quarter.
  int64_t verifications = 0;
  double trainer_verification_seconds = 0;  // while training waited
  double spare_verification_seconds = 0;
  double spare_idle_seconds = 0;  // paid for, and not verifying
  int64_t holds = 0;
  double hold_seconds = 0;
  int64_t rollbacks = 0;
  int64_t switches = 0;
  double switch_seconds = 0;    // from the last step before a rollback or a change of plan to the
                                // first after it
  double loss_gap_percent = 0;  // of FP8's loss over what BF16's would be now
};

// Each returns false and changes nothing when a number is not finite, negative, or says what cannot
// be (more steps lost than run).
bool add_step(Account& account, StepKind kind, double seconds);
// The steps of one replay and their mean time. Neither pinned plans nor, on the trainer, FP8 are
// taken: its own steps tell that.
bool add_replayed_steps(Account& account, Where where, StepKind kind, int64_t steps,
                        double mean_seconds);
// `device_share`: the devices at work over the training devices. On the trainer it is 1.
bool add_verification(Account& account, Where where, double seconds, double device_share = 1);
bool add_spare_idle(Account& account, double seconds, double device_share);
bool add_hold(Account& account, double seconds);
bool add_switch(Account& account, double seconds);
// By kind, in the order of kStepKinds.
using StepCounts = std::array<int64_t, std::size(kStepKinds)>;
// A rollback took these steps away: paid and not earned.
bool add_rollback(Account& account, const StepCounts& steps);
// A crash of the machine took them away: neither paid nor earned, as a run in BF16 would have lost
// them too.
bool add_crash(Account& account, const StepCounts& steps);
bool set_loss_gap(Account& account, double percent);

// BF16's step time over FP8's, and what it rests on.
struct MeasuredSpeedup {
  double value = 1;
  std::string source;  // steps, inline_replays, spare_replays, prior
};
// False where the value is the policy's word: nothing that rests on it is shown as measured.
bool is_measured(const MeasuredSpeedup& speedup);
// From medians of the newest kStepTimesKept steps or replays, in this order: the run's own steps in
// both precisions; BF16 replays on the training devices against the run's FP8 steps; replays in
// both precisions on the spare devices; else the prior. Both sides need kStepTimesTrusted steps.
MeasuredSpeedup measured_speedup(const Account& account, double prior);

struct AccountItem {
  std::string key;    // training, bf16_steps, pinned_steps, rolled_back, verification, spare,
                      // spare_idle, holds, switches, loss_gap
  std::string words;  // "steps that were rolled back"
  double seconds = 0;
  double share = 0;  // of the total paid
};

struct Statement {
  MeasuredSpeedup speedup;
  int64_t useful_steps = 0;
  double bf16_seconds = 0;         // what the useful steps take in BF16 without verification
  double paid_seconds = 0;         // everything paid, with the compute that the loss gap is worth
  double net = 0;                  // bf16_seconds / paid_seconds; 0 before anything useful was done
  std::vector<AccountItem> items;  // their seconds add up to paid_seconds, their shares to 1
  std::string sentence;            // for people
};

// `prior_speedup` in [0.01, 100] as an operator states it, and `loss_exponent` as for
// compute_factor(); throws ConfigError otherwise. The item "training" is what all useful steps take
// at FP8's mean step time; it is the only one that a perfect run would have.
Statement statement(const Account& account, double prior_speedup, double loss_exponent = 0.050);

}  // namespace gnomon::decide
