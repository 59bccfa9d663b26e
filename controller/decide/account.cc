#include "controller/decide/account.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/stopwatch.h"
#include "controller/decide/economics.h"

namespace gnomon::decide {
namespace {

constexpr double kSecondsMax = 1e10;  // of one fact

StepTimes& times_of(Account& account, StepKind kind) {
  if (kind == StepKind::kFp8) return account.fp8;
  return kind == StepKind::kPinned ? account.pinned : account.bf16;
}

bool plausible(double seconds) { return seconds >= 0 && seconds <= kSecondsMax; }

bool add_seconds(double& sum, double seconds, double device_share = 1) {
  if (!plausible(seconds) || !(device_share > 0 && device_share <= 1e3)) return false;
  sum += seconds * device_share;
  return true;
}

bool both_trusted(const StepTimes& bf16, const StepTimes& fp8) {
  return bf16.trusted() && fp8.trusted();
}

// Mean seconds of an FP8 step; of the BF16 steps and the speed-up when none was seen.
double fp8_step_seconds(const Account& account, double speedup) {
  if (account.fp8.steps > 0) return account.fp8.mean();
  if (account.bf16.steps > 0) return account.bf16.mean() / speedup;
  return account.pinned.mean();
}

struct Kind {
  const StepTimes& times;
  int64_t lost;
  int64_t useful() const { return times.steps - lost; }
  double useful_seconds() const { return static_cast<double>(useful()) * times.mean(); }
  double lost_seconds() const { return static_cast<double>(lost) * times.mean(); }
};

bool can_lose(const Account& account, const StepCounts& steps) {
  const StepCounts kept = {account.fp8.steps - account.fp8_lost,
                           account.pinned.steps - account.pinned_lost,
                           account.bf16.steps - account.bf16_lost};
  for (size_t kind = 0; kind < steps.size(); ++kind) {
    if (steps[kind] < 0 || steps[kind] > kept[kind]) return false;
  }
  return true;
}

void add_item(Statement& to, const char* key, const char* words, double seconds) {
  to.items.push_back({key, words, seconds, 0});
}

std::string speedup_in_words(const Statement& made) {
  const double speedup = made.speedup.value;
  if (!is_measured(made.speedup)) {
    return fmt::format(
        "FP8's speed is not measured yet: if its steps were {:.2f} times as fast as BF16's, as the "
        "policy assumes, the net speed-up would be {:.3f}",
        speedup, made.net);
  }
  const std::string text =
      fmt::format("Net speed-up {:.3f} over BF16 without verification", made.net);
  if (speedup >= 1)
    return fmt::format("{} ({:.2f} from FP8's faster steps, measured)", text, speedup);
  return fmt::format(
      "{} (FP8's steps have {:.2f} times BF16's speed, measured, as in small models and where FP8 "
      "is emulated)",
      text, speedup);
}

std::string in_words(const Statement& made) {
  if (made.useful_steps == 0) return "No step of this run is kept yet.";
  std::string text = speedup_in_words(made);
  std::vector<AccountItem> costs(made.items.begin() + 1, made.items.end());
  std::stable_sort(costs.begin(), costs.end(), [](const AccountItem& a, const AccountItem& b) {
    return a.seconds > b.seconds;
  });
  std::string list;
  for (const AccountItem& item : costs) {
    if (item.share < 5e-4) continue;
    list += fmt::format("{}{:.1f}% for {}", list.empty() ? "" : ", ", 100 * item.share, item.words);
  }
  return text + (list.empty() ? "." : "; of the time paid went " + list + ".");
}

}  // namespace

bool StepTimes::add(double step_seconds, int64_t count) {
  if (!(step_seconds > 0 && step_seconds <= kStepSecondsMax) || count < 1) return false;
  steps += count;
  seconds += step_seconds * static_cast<double>(count);
  if (recent.size() == kStepTimesKept) recent.erase(recent.begin());
  recent.push_back(step_seconds);
  return true;
}

double StepTimes::mean() const { return steps > 0 ? seconds / static_cast<double>(steps) : 0; }

double StepTimes::typical() const { return recent.empty() ? 0 : median(recent); }

bool add_step(Account& account, StepKind kind, double seconds) {
  return times_of(account, kind).add(seconds);
}

bool add_replayed_steps(Account& account, Where where, StepKind kind, int64_t steps,
                        double mean_seconds) {
  if (kind == StepKind::kPinned) return false;
  if (where == Where::kTrainer) {
    return kind == StepKind::kBf16 && account.trainer_replay_bf16.add(mean_seconds, steps);
  }
  return (kind == StepKind::kBf16 ? account.spare_replay_bf16 : account.spare_replay_fp8)
      .add(mean_seconds, steps);
}

bool add_verification(Account& account, Where where, double seconds, double device_share) {
  double& sum = where == Where::kTrainer ? account.trainer_verification_seconds
                                         : account.spare_verification_seconds;
  if (!add_seconds(sum, seconds, device_share)) return false;
  ++account.verifications;
  return true;
}

bool add_spare_idle(Account& account, double seconds, double device_share) {
  return add_seconds(account.spare_idle_seconds, seconds, device_share);
}

bool add_hold(Account& account, double seconds) {
  if (!add_seconds(account.hold_seconds, seconds)) return false;
  ++account.holds;
  return true;
}

bool add_switch(Account& account, double seconds) {
  if (!add_seconds(account.switch_seconds, seconds)) return false;
  ++account.switches;
  return true;
}

bool add_rollback(Account& account, const StepCounts& steps) {
  if (!can_lose(account, steps)) return false;
  account.fp8_lost += steps[0];
  account.pinned_lost += steps[1];
  account.bf16_lost += steps[2];
  ++account.rollbacks;
  return true;
}

bool add_crash(Account& account, const StepCounts& steps) {
  if (!can_lose(account, steps)) return false;
  for (size_t kind = 0; kind < std::size(kStepKinds); ++kind) {
    StepTimes& times = times_of(account, kStepKinds[kind]);
    times.seconds -= static_cast<double>(steps[kind]) * times.mean();
    times.steps -= steps[kind];
    if (times.steps == 0) times.seconds = 0;
  }
  return true;
}

bool set_loss_gap(Account& account, double percent) {
  if (!std::isfinite(percent) || percent > 100) return false;
  account.loss_gap_percent = percent;
  return true;
}

bool is_measured(const MeasuredSpeedup& speedup) { return speedup.source != "prior"; }

MeasuredSpeedup measured_speedup(const Account& account, double prior) {
  const auto ratio = [](const StepTimes& bf16, const StepTimes& fp8) {
    return std::clamp(bf16.typical() / fp8.typical(), 0.01, 100.0);
  };
  if (both_trusted(account.bf16, account.fp8)) return {ratio(account.bf16, account.fp8), "steps"};
  if (both_trusted(account.trainer_replay_bf16, account.fp8)) {
    return {ratio(account.trainer_replay_bf16, account.fp8), "inline_replays"};
  }
  if (both_trusted(account.spare_replay_bf16, account.spare_replay_fp8)) {
    return {ratio(account.spare_replay_bf16, account.spare_replay_fp8), "spare_replays"};
  }
  return {prior, "prior"};
}

Statement statement(const Account& account, double prior_speedup, double loss_exponent) {
  RunModel with_prior;
  with_prior.speedup = prior_speedup;
  check_model(with_prior);
  Statement made;
  made.speedup = measured_speedup(account, prior_speedup);
  const Kind fp8{account.fp8, account.fp8_lost}, pinned{account.pinned, account.pinned_lost},
      bf16{account.bf16, account.bf16_lost};
  const double step = fp8_step_seconds(account, made.speedup.value);
  const auto at_fp8 = [step](int64_t steps) { return static_cast<double>(steps) * step; };
  made.useful_steps = fp8.useful() + pinned.useful() + bf16.useful();
  made.bf16_seconds = made.speedup.value * at_fp8(made.useful_steps);

  double paid = account.fp8.seconds + account.pinned.seconds + account.bf16.seconds +
                account.trainer_verification_seconds + account.spare_verification_seconds +
                account.spare_idle_seconds + account.hold_seconds + account.switch_seconds;
  made.paid_seconds = paid * compute_factor(account.loss_gap_percent, loss_exponent);

  add_item(made, "training", "the steps themselves at FP8's speed", at_fp8(made.useful_steps));
  add_item(made, "bf16_steps", "steps in BF16", bf16.useful_seconds() - at_fp8(bf16.useful()));
  add_item(made, "pinned_steps", "steps with sites in BF16",
           pinned.useful_seconds() - at_fp8(pinned.useful()));
  add_item(made, "rolled_back", "steps that were rolled back",
           fp8.lost_seconds() + pinned.lost_seconds() + bf16.lost_seconds());
  add_item(made, "verification", "verification, charged to the training devices",
           account.trainer_verification_seconds);
  add_item(made, "spare", "verification on spare devices", account.spare_verification_seconds);
  add_item(made, "spare_idle", "spare devices that waited", account.spare_idle_seconds);
  add_item(made, "holds", "pauses and holds", account.hold_seconds);
  add_item(made, "switches", "rollbacks' and plans' restarts", account.switch_seconds);
  add_item(made, "loss_gap", "the compute that the loss gap is worth", made.paid_seconds - paid);
  if (made.paid_seconds > 0) {
    for (AccountItem& item : made.items) item.share = item.seconds / made.paid_seconds;
    made.net = made.bf16_seconds / made.paid_seconds;
  }
  made.sentence = in_words(made);
  return made;
}

}  // namespace gnomon::decide
