// Which sites are to blame: an analysis of the checkpoint ranks them, replays with some of them in
// BF16 find the smallest set that takes the damage away.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "controller/decide/core.h"
#include "controller/decide/plans.h"

namespace gnomon::decide {
namespace {

namespace json = boost::json;

SearchLimits search_limits(const Policy& policy) {
  SearchLimits limits;
  limits.width = policy.attribution.parallel;
  limits.replays_max = policy.attribution.replays_max;
  limits.guilty_max = policy.attribution.sites_max;
  return limits;
}

// The FP8 sites in the order of suspicion; those without a score come last.
std::vector<std::string> ranked_sites(const std::vector<std::string>& sites,
                                      const std::vector<SiteScore>& scores) {
  std::vector<double> phi, psi;
  for (const std::string& site : sites) {
    const auto found = std::ranges::find(scores, site, &SiteScore::site);
    phi.push_back(found != scores.end() ? found->phi : -HUGE_VAL);
    psi.push_back(found != scores.end() ? found->psi : -HUGE_VAL);
  }
  std::vector<std::string> ranked;
  for (const size_t place : order_of_suspicion(phi, psi)) ranked.push_back(sites[place]);
  return ranked;
}

json::array scores_evidence(const std::vector<SiteScore>& scores) {
  json::array out;
  for (const SiteScore& score : scores) {
    out.push_back({{"site", score.site},
                   {"phi", number(score.phi)},
                   {"psi", number(score.psi)},
                   {"sqnr_db", number(score.sqnr_db)}});
  }
  return out;
}

void give_up(Core& core, const std::string& why) {
  const Case& investigation = *core.s.investigation;
  const std::string verdict = investigation.verdict;
  RecordDecision& decision = core.record(
      "attribution", fmt::format("The blame could not be pinned to single sites: {}.", why),
      {{"replays", investigation.search.replays},
       {"found", names(investigation.search.guilty)},
       {"scores", scores_evidence(investigation.scores)},
       {"why", why}});
  decision.verdict = verdict;
  decision.window = investigation.window;
  respond(core, verdict, {});
}

void finish(Core& core) {
  const Case& investigation = *core.s.investigation;
  const std::string verdict = investigation.verdict;
  std::vector<std::string> guilty = investigation.search.guilty;
  std::sort(guilty.begin(), guilty.end());
  RecordDecision& decision =
      core.record("attribution",
                  fmt::format("Blamed: {}. With {} in BF16 the damage is gone ({} replays).",
                              fmt::join(guilty, ", "), guilty.size() == 1 ? "it" : "them",
                              investigation.search.replays),
                  {{"replays", investigation.search.replays},
                   {"sites", names(guilty)},
                   {"scores", scores_evidence(investigation.scores)}});
  decision.verdict = verdict;
  decision.window = investigation.window;
  decision.sites = guilty;
  respond(core, verdict, guilty);
}

// Orders what the search wants to know, or ends it.
void pump_search(Core& core) {
  State& s = core.s;
  AttributionSearch& search = s.investigation->search;
  const SearchLimits limits = search_limits(core.policy);
  const WindowState window = *find_window(s, s.investigation->window);
  if (search.done() && !search.guilty.empty()) return finish(core);
  if (search.done()) return give_up(core, "no site of the plan runs in FP8");
  const std::string plan = plan_of(s, window.plan_version).toml;
  for (int64_t prefix : search.next(limits)) {
    OrderReplay wanted;
    wanted.arm = "plan";
    wanted.plan = rescue_plan(plan, search.rescued(prefix), window.plan_version);
    wanted.evaluate_endpoints = s.investigation->evidence.trigger == "gap";
    wanted.priority = kPriorityAttribution;
    order(core, window, "rescue", prefix, std::move(wanted));
  }
  if (!search.exhausted(limits)) return;
  give_up(core, search.failures >= limits.failures_max
                    ? fmt::format("{} replays could not be done", search.failures)
                    : fmt::format("{} replays and {} sites found were not enough", search.replays,
                                  search.guilty.size()));
}

void start_search(Core& core) {
  State& s = core.s;
  const WindowState& window = *find_window(s, s.investigation->window);
  const std::vector<std::string> sites = fp8_sites(s.run, plan_of(s, window.plan_version).toml);
  const std::vector<SiteScore>& scores = s.investigation->scores;
  s.investigation->search = AttributionSearch::start(
      scores.empty() ? sites : ranked_sites(sites, scores), !scores.empty());
  pump_search(core);
}

bool rescues(const Core& core, const ReplayFinished& result, const WindowState& window) {
  const TriageEvidence& evidence = core.s.investigation->evidence;
  const double share = core.policy.attribution.recovered_share;
  if (!evidence.finding) {
    Measurement measured = evidence.measured;
    if (measured.d_percent && std::isfinite(*measured.d_percent) && !evidence.chance_excluded)
      measured.d_percent = std::min(*measured.d_percent, level_of(evidence));
    return rescue_closes_gap(result, measured, share, core.policy.detector.tolerance_percent);
  }
  if (spoilt_before(evidence)) {
    const SpikeComparison seen =
        compare_spike(result, *evidence.finding, window.steps, kAroundSpike);
    return !seen.non_finite && !seen.spikes;
  }
  SpikeComparison bf16;
  for (const TriageAnswer& answer : evidence.answers) {
    const bool of_bf16 = answer.kind == "bf16" || answer.kind == "bf16_far";
    if (of_bf16 && answer.spike) bf16 = *answer.spike;
  }
  return rescue_avoids_spike(result, *evidence.finding, bf16, share, window.steps);
}

}  // namespace

void start_attribution(Core& core) {
  State& s = core.s;
  const WindowState window = *find_window(s, s.investigation->window);
  s.investigation->stage = "attribution";
  if (!core.policy.attribution.scores) return start_search(core);
  OrderReplay wanted;
  wanted.arm = "scores";
  if (window.start.plan_version != window.plan_version)
    wanted.plan = plan_of(s, window.plan_version).toml;
  wanted.priority = kPriorityAttribution;
  order(core, window, "scores", 0, std::move(wanted));
}

void take_scores(Core& core, const ReplayFinished& result) {
  std::vector<SiteScore> scores = result.scores;
  if (scores.size() > kScoresMax) scores.resize(kScoresMax);
  core.s.investigation->scores = std::move(scores);
  start_search(core);
}

void scores_failed(Core& core) { start_search(core); }

void take_rescue(Core& core, int64_t prefix, const ReplayFinished& result) {
  State& s = core.s;
  Case& investigation = *s.investigation;
  const bool recovers = rescues(core, result, *find_window(s, investigation.window));
  const size_t found = investigation.search.guilty.size();
  core.say(fmt::format("Rescuing {} site(s) {}.", investigation.search.rescued(prefix).size(),
                       recovers ? "recovers" : "does not recover"));
  investigation.search.answer(prefix, recovers);
  const AttributionSearch& search = investigation.search;
  std::erase_if(s.replays, [&](const PendingReplay& replay) {
    if (replay.role != "rescue") return false;
    return search.guilty.size() != found ||
           std::find(search.asked.begin(), search.asked.end(), replay.number) == search.asked.end();
  });
  pump_search(core);
}

void rescue_failed(Core& core, int64_t prefix) {
  core.s.investigation->search.failed(prefix);
  pump_search(core);
}

}  // namespace gnomon::decide
