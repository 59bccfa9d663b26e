#include "controller/supervisor/replay_results.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "base/hash.h"
#include "protocol/json.h"

namespace gnomon {
namespace {

std::string fingerprint_digest(const Fingerprint& fingerprint) {
  if (fingerprint == Fingerprint{}) return {};
  const std::string text = to_json(fingerprint);
  return hex64(hash64(text.data(), text.size()));
}

// The ledger has no NaN: it is as absent as what was not measured.
std::optional<double> as_recorded(const std::optional<double>& value) {
  return value && std::isnan(*value) ? std::nullopt : value;
}

std::string shown(const std::optional<double>& value) {
  return value ? fmt::format("{}", *value) : "absent";
}

// Notes the first difference and passes over the rest.
class Comparison {
 public:
  void number(const std::string& member, double before, double now) {
    if (!same_bits(before, now)) note(member, fmt::format("{}", before), fmt::format("{}", now));
  }
  void optional(const std::string& member, const std::optional<double>& before,
                const std::optional<double>& now) {
    const std::optional<double> known = as_recorded(before);
    const std::optional<double> repeated = as_recorded(now);
    const bool same =
        known.has_value() == repeated.has_value() && (!known || same_bits(*known, *repeated));
    if (!same) note(member, shown(known), shown(repeated));
  }
  template <typename Value>
  void value(const std::string& member, const Value& before, const Value& now) {
    if (before != now) note(member, fmt::format("{}", before), fmt::format("{}", now));
  }
  std::string release() { return std::move(found_); }

 private:
  void note(const std::string& member, const std::string& before, const std::string& now) {
    if (found_.empty()) found_ = fmt::format("{} was {} and now is {}", member, before, now);
  }
  std::string found_;
};

void compare_steps(Comparison& comparison, const ReplayResult& known,
                   const ReplayResult& repeated) {
  for (size_t i = 0; i < known.steps.size(); ++i) {
    const ReplayStep& before = known.steps[i];
    const ReplayStep& now = repeated.steps[i];
    const std::string of_step = fmt::format(" of step {}", before.step);
    comparison.value("step", before.step, now.step);
    comparison.number("loss" + of_step, before.loss, now.loss);
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();  // as it is on record
    comparison.number("grad_norm" + of_step, before.grad_norm.value_or(kNone),
                      now.grad_norm.value_or(kNone));
    comparison.value("weights_hash" + of_step, before.weights_hash, now.weights_hash);
    comparison.value("batch_hash" + of_step, before.batch_hash, now.batch_hash);
  }
}

// By site; of two of one site the first is recorded.
std::map<std::string, SiteScoreRow> by_site(const std::vector<SiteScoreRow>& scores) {
  std::map<std::string, SiteScoreRow> found;
  for (const SiteScoreRow& score : scores) found.emplace(score.site, score);
  return found;
}

void compare_scores(Comparison& comparison, const ReplayResult& known,
                    const ReplayResult& repeated) {
  const std::map<std::string, SiteScoreRow> before = by_site(known.scores);
  const std::map<std::string, SiteScoreRow> now = by_site(repeated.scores);
  comparison.value("the number of scores", before.size(), now.size());
  for (const auto& [site, score] : before) {
    const auto found = now.find(site);
    if (found == now.end())
      return comparison.value("a site of scores", site, std::string("absent"));
    comparison.number("phi of " + site, score.phi, found->second.phi);
    comparison.number("psi of " + site, score.psi, found->second.psi);
    comparison.number("sqnr_db of " + site, score.sqnr_db, found->second.sqnr_db);
  }
}

}  // namespace

bool same_bits(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

decide::ReplayFinished join_replay(const ReplayOrder& replay, const ReplayResult& result,
                                   const std::vector<StepRow>& run_steps,
                                   const Fingerprint& run_fingerprint, const std::string& verifier,
                                   bool on_trainer) {
  decide::ReplayFinished event;
  event.replay = replay.replay;
  event.window = replay.window;
  event.arm = replay.arm;
  event.purpose = replay.purpose;
  event.fingerprint_equal = result.fingerprint == run_fingerprint;
  event.start_loss_bf16 = result.start_loss_bf16;
  event.start_loss_plan =
      result.start_loss_fakequant ? result.start_loss_fakequant : result.start_loss_plan;
  event.run_end_loss_bf16 = result.run_end_loss_bf16;
  event.replay_end_loss_bf16 = result.replay_end_loss_bf16;
  event.verifier = verifier;
  event.fingerprint = fingerprint_digest(result.fingerprint);
  event.on_trainer = on_trainer;
  event.gap_error = result.gap_error;
  event.seconds = result.replay_seconds + result.eval_seconds;
  event.step_seconds = result.replay_seconds;
  if (!result.steps.empty()) event.end_hash = result.steps.back().weights_hash;
  for (const SiteScoreRow& score : result.scores) {
    event.scores.push_back({score.site, score.phi, score.psi, score.sqnr_db});
  }
  std::map<int64_t, const StepRow*> by_step;
  for (const StepRow& step : run_steps) {
    by_step[step.step] = &step;
  }
  for (const ReplayStep& step : result.steps) {
    auto found = by_step.find(step.step);
    const StepRow* reported = found == by_step.end() ? nullptr : found->second;
    event.steps.push_back(step.step);
    event.losses.push_back(step.loss);
    bool comparable = reported && std::isfinite(reported->loss);
    event.run_losses.push_back(comparable ? reported->loss
                                          : std::numeric_limits<double>::quiet_NaN());
    if (!reported) continue;
    const bool hashed = !reported->batch_hash.empty() && !step.batch_hash.empty();
    if (hashed && reported->batch_hash != step.batch_hash) {
      if (!event.first_other_batch_step) event.first_other_batch_step = step.step;
      if (event.other_batches.size() < decide::kOtherBatchesMax) {
        event.other_batches.push_back({step.step, reported->batch_hash, step.batch_hash});
      }
    }
    if (reported->weights_hash.empty() || step.weights_hash.empty()) continue;
    ++event.compared_steps;
    bool equal = reported->weights_hash == step.weights_hash &&
                 same_bits(reported->loss, step.loss) &&
                 (!reported->grad_norm || !step.grad_norm ||
                  same_bits(*reported->grad_norm, *step.grad_norm));
    if (!equal && !event.first_mismatch_step) {
      event.first_mismatch_step = step.step;
    }
  }
  return event;
}

std::string difference(const ReplayResult& known, const ReplayResult& repeated) {
  Comparison comparison;
  comparison.value("fingerprint", to_json(known.fingerprint), to_json(repeated.fingerprint));
  comparison.optional("start_loss_bf16", known.start_loss_bf16, repeated.start_loss_bf16);
  comparison.optional("start_loss_plan", known.start_loss_plan, repeated.start_loss_plan);
  comparison.optional("run_end_loss_bf16", known.run_end_loss_bf16, repeated.run_end_loss_bf16);
  comparison.optional("replay_end_loss_bf16", known.replay_end_loss_bf16,
                      repeated.replay_end_loss_bf16);
  comparison.optional("start_loss_fakequant", known.start_loss_fakequant,
                      repeated.start_loss_fakequant);
  comparison.optional("gap_error", known.gap_error, repeated.gap_error);
  comparison.value("heldout_tokens", known.heldout_tokens, repeated.heldout_tokens);
  comparison.number("replay_seconds", known.replay_seconds, repeated.replay_seconds);
  comparison.number("eval_seconds", known.eval_seconds, repeated.eval_seconds);
  comparison.value("the number of steps", known.steps.size(), repeated.steps.size());
  if (known.steps.size() == repeated.steps.size()) compare_steps(comparison, known, repeated);
  compare_scores(comparison, known, repeated);
  return comparison.release();
}

}  // namespace gnomon
