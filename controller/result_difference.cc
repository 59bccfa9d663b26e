#include "controller/result_difference.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "controller/replay_join.h"
#include "protocol/json.h"

namespace gnomon {
namespace {

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
  std::string take() { return std::move(found_); }

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
  return comparison.take();
}

}  // namespace gnomon
