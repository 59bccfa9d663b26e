#include "lab/rehearsal/aftermath.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "controller/decide/attribution_search.h"
#include "controller/decide/decide.h"
#include "controller/decide/net_speedup.h"
#include "controller/decide/policy.h"
#include "lab/rehearsal/findings_numbers.h"
#include "trainer/engine/engine.h"

namespace gnomon::rehearsal {
namespace {

namespace json = boost::json;

struct Mean {
  int64_t count = 0;
  double value = 0;
  double squares = 0;  // about the mean

  void add(double x) {
    count += 1;
    const double delta = x - value;
    value += delta / static_cast<double>(count);
    squares += delta * (x - value);
  }
  json::value mean() const { return count > 0 ? finite(value) : nullptr; }
  json::value error() const {
    if (count < 2) return nullptr;
    const auto n = static_cast<double>(count);
    return finite(std::sqrt(squares / (n - 1) / n));
  }
};

bool is_action(const TracedDecision& each) {
  return each.decision.kind == "action" && each.decision.enforced && each.decision.action != "none";
}

void add_healthy(json::object& result, const std::vector<RecordedRun>& enforced) {
  int64_t healthy = 0, actions = 0, accepted = 0;
  for (const RecordedRun& run : enforced) {
    if (!run.healthy()) continue;
    healthy += 1;
    for (const TracedDecision& each : run.trace->decisions) {
      actions += is_action(each);
      accepted += each.decision.kind == "accept";
    }
  }
  result["healthy_runs"] = healthy;
  result["actions_on_healthy"] = healthy > 0 ? json::value(actions) : nullptr;
  result["accepted_on_healthy"] = healthy > 0 ? json::value(accepted) : nullptr;
}

// ---- who was blamed

// Replays until the search has found `guilty` in this order.
int64_t replays_needed(std::vector<std::string> order, const std::set<std::string>& guilty) {
  auto search = decide::AttributionSearch::start(std::move(order));
  const decide::SearchLimits one_by_one{
      .width = 1, .replays_max = 1000, .guilty_max = 1000, .failures_max = 1};
  while (!search.done()) {
    for (const int64_t prefix : search.next(one_by_one)) {
      const std::vector<std::string> rescued = search.rescued(prefix);
      const std::set<std::string> in_bf16(rescued.begin(), rescued.end());
      search.answer(prefix, std::ranges::includes(in_bf16, guilty));
    }
  }
  return search.replays;
}

std::vector<std::string> sites_of(const Trace& trace) {
  const json::value setup = json::parse(trace.setup);
  return EngineConfig::from_json(json::serialize(setup.at("engine")), "setup of a trace")
      .model.sites();
}

struct Blame {
  Mean sites, replays, bisection;

  // `order`: the model's sites, all of them in FP8.
  void add(const decide::RecordDecision& decision, std::vector<std::string> order);
};

void Blame::add(const decide::RecordDecision& decision, std::vector<std::string> order) {
  const json::object evidence = json::parse(decision.evidence).as_object();
  const std::set<std::string> guilty(decision.sites.begin(), decision.sites.end());
  if (guilty.empty()) return;
  Mean from_each;
  for (size_t turn = 0; turn < order.size(); ++turn) {
    std::ranges::rotate(order, order.begin() + 1);
    from_each.add(static_cast<double>(replays_needed(order, guilty)));
  }
  sites.add(static_cast<double>(order.size()));
  const int64_t of_scores = evidence.at("scores").as_array().empty() ? 0 : 1;
  replays.add(static_cast<double>(of_scores + evidence.at("replays").to_number<int64_t>()));
  bisection.add(from_each.value);
}

void add_blame(json::object& result, const std::vector<RecordedRun>& enforced) {
  int64_t pins = 0, guilty = 0, attributions = 0;
  double replays = 0;
  Mean pinned;
  Blame blame;
  for (const RecordedRun& run : enforced) {
    const std::set<std::string> sites(run.label.guilty_sites.begin(), run.label.guilty_sites.end());
    for (const TracedDecision& each : run.trace->decisions) {
      if (each.decision.kind == "attribution") {
        attributions += 1;
        blame.add(each.decision, sites_of(*run.trace));
      }
      // Where every site is guilty, any would be right.
      if (!is_action(each) || each.decision.action != "pin" || sites.size() != 1) continue;
      if (each.decision.step < *run.label.fault_from) continue;
      pins += 1;
      pinned.add(static_cast<double>(each.decision.sites.size()));
      guilty += std::ranges::count(each.decision.sites, *sites.begin()) > 0;
    }
    for (const TracedEvent& each : run.trace->events) {
      const auto* replay = std::get_if<decide::ReplayFinished>(&each.event);
      replays += replay != nullptr && replay->purpose == "attribution";
    }
  }
  result["guilty_site_pinned_share"] = share(guilty, pins);
  result["mean_pinned_sites"] = pinned.mean();
  result["replays_per_attribution"] = finite(replays / static_cast<double>(attributions));
  result["attribution"] = {{"found", blame.sites.count},
                           {"sites", blame.sites.mean()},
                           {"replays", blame.replays.mean()},
                           {"plain_bisection", blame.bisection.mean()},
                           {"leave_one_out", blame.sites.mean()}};
}

// ---- how it ended

decide::Policy policy_of(const Trace& trace) {
  return decide::Policy::parse(std::string(json::parse(trace.setup).at("policy").as_string()),
                               "policy of a trace");
}

// The decision core's state when it has the run's events again; nothing for a trace of
// another core, which decides otherwise.
std::optional<decide::State> decided_again(const Trace& trace) {
  const decide::Policy policy = policy_of(trace);
  decide::State state;
  size_t decided = 0;
  for (const TracedEvent& each : trace.events) {
    decide::Outcome outcome = decide::decide(std::move(state), each.event, policy, each.at);
    state = std::move(outcome.state);
    for (const decide::Effect& effect : outcome.effects) {
      const auto* made = std::get_if<decide::RecordDecision>(&effect);
      if (made == nullptr) continue;
      const bool known = decided < trace.decisions.size() &&
                         made->sentence == trace.decisions[decided].decision.sentence;
      if (!known) return std::nullopt;
      decided += 1;
    }
  }
  if (decided != trace.decisions.size()) return std::nullopt;
  return state;
}

// Everything paid but verification, as the account of the decision core has it.
std::optional<double> speedup_kept(const Trace& trace) {
  const std::optional<decide::State> state = decided_again(trace);
  if (!state) return std::nullopt;
  const decide::Statement made = decide::net_speedup_report(*state, policy_of(trace)).statement;
  double paid = 0, verification = 0, loss_gap = 0;
  for (const decide::AccountItem& item : made.items) {
    const bool verifies = item.key == "verification" || item.key.starts_with("spare");
    (item.key == "loss_gap" ? loss_gap : verifies ? verification : paid) += item.seconds;
  }
  // What a loss gap is worth is a share of all compute.
  const double gap_factor = 1 + loss_gap / (paid + verification);
  return made.bf16_seconds / (paid * gap_factor);
}

void add_ends(json::object& result, const RecordedRuns& runs) {
  int64_t within = 0, within_healthy = 0;
  Mean bf16, fp8, kept;
  for (const RecordedRun& run : runs.enforced) {
    if (!runs.harmed(run) || run.trace->result.outcome != "completed") continue;
    within += *run.above_bf16 <= kHarmPercent;
    within_healthy +=
        *run.above_fp8 <= std::max(kHarmPercent, kHarmDeviations * run.chance_percent);
    bf16.add(*run.above_bf16);
    fp8.add(*run.above_fp8);
    if (const auto speedup = speedup_kept(*run.trace)) kept.add(*speedup);
  }
  const auto as_recorded = std::ranges::count_if(
      runs.enforced, [](const RecordedRun& run) { return decided_again(*run.trace).has_value(); });
  result["decided_as_recorded_share"] = share(as_recorded, std::ssize(runs.enforced));
  result["ended_harmed_runs"] = bf16.count;
  result["final_within_share"] = share(within, bf16.count);
  result["final_within_healthy_share"] = share(within_healthy, bf16.count);
  result["mean_final_percent"] = bf16.mean();
  result["mean_final_error_percent"] = bf16.error();
  result["mean_final_healthy_percent"] = fp8.mean();
  result["mean_final_healthy_error_percent"] = fp8.error();
  result["speedup_kept"] = kept.mean();
  result["speedup_kept_runs"] = kept.count;
}

}  // namespace

json::object aftermath(const RecordedRuns& runs) {
  json::object result;
  add_healthy(result, runs.enforced);
  add_blame(result, runs.enforced);
  add_ends(result, runs);
  return result;
}

}  // namespace gnomon::rehearsal
