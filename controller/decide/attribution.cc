#include "controller/decide/attribution.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "controller/decide/containment.h"
#include "controller/decide/gap_settings.h"
#include "controller/decide/ladder.h"
#include "controller/decide/plans.h"
#include "controller/decide/verifier_records.h"
#include "controller/decide/windows.h"
#include "protocol/run_precision.h"

namespace gnomon::decide {
namespace {

namespace json = boost::json;

constexpr size_t kScoresMax = 4096;
constexpr int64_t kSecondRescue = -1;  // in place of a prefix: by a second source

// Sites that are pinned already count against what may be pinned.
SearchLimits search_limits(const Core& core) {
  const Policy::Attribution& policy = core.policy.attribution;
  SearchLimits limits;
  limits.width = policy.parallel;
  limits.replays_max = policy.replays_max;
  limits.guilty_max = policy.sites_max - count_units(core.s.run, pinned_sites(core.s));
  return limits;
}

// The FP8 sites in the order of suspicion; those without a score come last. Moments and
// communication, which no analysis scores, come behind the foremost site.
std::vector<std::string> ranked_sites(const std::vector<std::string>& all,
                                      const std::vector<SiteScore>& scores) {
  const auto first_site = std::ranges::find_if(
      all, [](const std::string& site) { return run_choice_of_site(site) == nullptr; });
  const std::vector<std::string> sites(first_site, all.end());
  std::vector<double> phi, psi;
  for (const std::string& site : sites) {
    const auto found = std::ranges::find(scores, site, &SiteScore::site);
    phi.push_back(found != scores.end() ? found->phi : -HUGE_VAL);
    psi.push_back(found != scores.end() ? found->psi : -HUGE_VAL);
  }
  std::vector<std::string> ranked;
  for (const size_t place : order_of_suspicion(phi, psi)) ranked.push_back(sites[place]);
  const auto behind = ranked.begin() + (ranked.empty() ? 0 : 1);
  ranked.insert(behind, all.begin(), first_site);
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
  const VerdictName verdict = investigation.verdict;
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

// At most so much may a rescue leave.
double limit_of_case(const Core& core) {
  const TriageEvidence& evidence = core.s.investigation->evidence;
  double d = HUGE_VAL;
  if (!evidence.finding) {
    d = evidence.measured.d_percent.value_or(HUGE_VAL);
    if (std::isfinite(d) && !evidence.chance_excluded) d = std::min(d, level_of(evidence));
  }
  return rescue_limit(d, core.policy.detector.tolerance_percent);
}

// The search asks for one site of each unit; this is all of what the trainer would switch.
std::vector<std::string> rescued_sites(const Core& core, const std::vector<std::string>& asked) {
  State& s = core.s;
  const int64_t version = find_window(s, s.investigation->window)->plan_version;
  return whole_units(s.run, fp8_sites(s.run, plan_of(s, version).toml), asked);
}

void finish(Core& core) {
  const Case& investigation = *core.s.investigation;
  const VerdictName verdict = investigation.verdict;
  std::vector<std::string> guilty = rescued_sites(core, investigation.search.guilty);
  std::sort(guilty.begin(), guilty.end());
  const std::vector<std::string> before = pinned_sites(core.s);
  const std::string beside =
      before.empty()
          ? ""
          : fmt::format(" beside {}", fmt::join(site_words(before, base_plan(core.s).toml), ", "));
  const std::string& plan =
      plan_of(core.s, find_window(core.s, investigation.window)->plan_version).toml;
  RecordDecision& decision = core.record(
      "attribution",
      fmt::format("Blamed: {}{}. With {} in {} the damage is gone: {} ± {} is left, at most {} "
                  "may be ({} replays).",
                  fmt::join(site_words(guilty, plan), ", "), beside,
                  guilty.size() == 1 ? "it" : "them", pinned_precision(guilty),
                  percent(investigation.left_percent), percent(investigation.left_error_percent),
                  percent(limit_of_case(core)), investigation.search.replays),
      {{"replays", investigation.search.replays},
       {"sites", names(guilty)},
       {"pinned_before", names(before)},
       {"left_percent", number(investigation.left_percent)},
       {"left_error_percent", number(investigation.left_error_percent)},
       {"scores", scores_evidence(investigation.scores)}});
  decision.verdict = verdict;
  decision.window = investigation.window;
  decision.sites = guilty;
  respond(core, verdict, guilty);
}

// A replay of the case's window with a set of the search in BF16.
OrderReplay rescue(const Core& core, int64_t prefix) {
  const State& s = core.s;
  const WindowState& window = *find_window(core.s, s.investigation->window);
  OrderReplay wanted;
  wanted.arm = "plan";
  wanted.plan = rescue_plan(plan_of(s, window.plan_version).toml,
                            rescued_sites(core, s.investigation->search.rescued(prefix)),
                            window.plan_version);
  wanted.evaluate_endpoints = s.investigation->evidence.trigger == "gap";
  wanted.priority = kPriorityAttribution;
  return wanted;
}

void order_rescue(Core& core, int64_t prefix, int64_t nudge) {
  OrderReplay wanted = rescue(core, prefix);
  wanted.nudge = nudge;
  ask_own_fp8(core.s, wanted);
  order(core, *find_window(core.s, core.s.investigation->window), "rescue", prefix,
        std::move(wanted));
}

// Nobody's word alone pins a site: asks a second source, of those that compute as the run does,
// about the set that the search has found. False: there is none, or one was asked.
bool ask_second_rescue(Core& core) {
  State& s = core.s;
  Case& investigation = *s.investigation;
  if (std::exchange(investigation.rescue_asked, true) || investigation.rescued_by.empty())
    return false;
  std::vector<std::string> others = shown_exact(s);
  std::erase(others, investigation.rescued_by);
  OrderReplay wanted = rescue(core, 0);
  std::vector<std::string> avoided = believed_verifiers(s);
  std::erase_if(avoided,
                [&](const std::string& known) { return std::ranges::count(others, known) > 0; });
  if (!others.empty()) wanted.avoid = fmt::format("{}", fmt::join(avoided, "\n"));
  wanted.on_trainer = others.empty();
  if (wanted.on_trainer && !trainer_can_replay(s)) return false;
  investigation.search.replays += 1;
  order(core, *find_window(s, investigation.window), "rescue", kSecondRescue, std::move(wanted));
  return true;
}

// Orders what the search wants to know, or ends it.
void pump_search(Core& core) {
  State& s = core.s;
  AttributionSearch& search = s.investigation->search;
  const SearchLimits limits = search_limits(core);
  if (search.done() && !search.guilty.empty())
    return ask_second_rescue(core) ? void() : finish(core);
  if (search.done()) return give_up(core, "no site of the plan runs in FP8");
  for (int64_t prefix : search.next(limits)) order_rescue(core, prefix, 0);
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
      first_of_units(s.run, scores.empty() ? sites : ranked_sites(sites, scores)), !scores.empty());
  pump_search(core);
}

// Where BF16 ended in the window that the rescues replay.
std::vector<double> bf16_ends(const TriageEvidence& evidence) {
  std::vector<double> ends;
  const auto add = [&](const std::optional<double>& end) {
    if (end && std::isfinite(*end)) ends.push_back(*end);
  };
  const bool far = spoilt_before(evidence);
  if (!evidence.finding) add(evidence.measured.reference);
  for (const TriageAnswer& answer : evidence.answers) {
    // The nudged replays of a spike begin at the oldest checkpoint.
    const bool nudged = answer.kind == "bf16_nudged" && (!evidence.finding || far);
    if (nudged || (answer.kind == (far ? ReplayRole("bf16_far") : "bf16"))) add(answer.end_loss);
  }
  return ends;
}

// True when the steps of a spike's rescue do not suffer; also when the case is about no spike.
bool avoids_spike(const Core& core, const ReplayFinished& result, const WindowState& window) {
  const TriageEvidence& evidence = core.s.investigation->evidence;
  if (!evidence.finding) return true;
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
  return rescue_avoids_spike(result, *evidence.finding, bf16,
                             core.policy.attribution.recovered_share, window.steps);
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// Per cent that a rescue ended above BF16; infinite when it suffers still.
double left_by(const Core& core, const ReplayFinished& result, const WindowState& window) {
  const auto& end = result.replay_end_loss_bf16;
  const bool ended = end && std::isfinite(*end);
  if (!avoids_spike(core, result, window)) return HUGE_VAL;
  const std::vector<double> ends = bf16_ends(core.s.investigation->evidence);
  const bool of_spike = core.s.investigation->evidence.finding.has_value();
  if (of_spike && (ends.empty() || !end)) return 0;  // its steps are all that can be compared
  if (ends.empty() || !ended) return HUGE_VAL;
  const double reference = mean_of(ends);
  return 100 * (*end - reference) / reference;
}

// The standard error of what so many replays of a rescue show: chance parts two runs of a window by
// the deviation of D, or by what the BF16 replays of this one show.
double error_of_rescue(const Core& core, const WindowState& window, int64_t replays) {
  const GapScale& learned = core.s.watch.gap.scale;
  double deviation =
      gap_scale_percent(learned, gap_sample(core, window), gap_settings(core.policy));
  if (learned.steps > 0 && static_cast<double>(window.steps) > learned.steps)
    deviation *= std::sqrt(static_cast<double>(window.steps) / learned.steps);
  const std::vector<double> ends = bf16_ends(core.s.investigation->evidence);
  const auto known = static_cast<double>(std::max<size_t>(1, ends.size()));
  if (ends.size() >= 3) {
    const double mean = mean_of(ends);
    double squares = 0;
    for (double end : ends) squares += (end - mean) * (end - mean);
    deviation = std::max(deviation, 100 * std::sqrt(2 * squares / (known - 1)) / mean);
  }
  return deviation * std::sqrt((1 / static_cast<double>(replays) + 1 / known) / 2);
}

int64_t rescues_waiting(const State& s, int64_t prefix) {
  return std::ranges::count_if(s.replays, [&](const PendingReplay& replay) {
    return replay.role == "rescue" && replay.number == prefix;
  });
}

// What the replays of a set show, once all of them are there; orders further ones where chance may
// have made the first.
std::optional<bool> judge_look(Core& core, RescueLook& look) {
  State& s = core.s;
  if (rescues_waiting(s, look.prefix) > 0) return std::nullopt;
  Case& investigation = *s.investigation;
  AttributionSearch& search = investigation.search;
  const WindowState& window = *find_window(s, investigation.window);
  RescueLeft left;
  left.replays = look.count;
  left.mean_percent = look.sum_percent / static_cast<double>(look.count);
  left.error_percent = error_of_rescue(core, window, look.count);
  std::optional<bool> recovers = rescue_recovers(left, limit_of_case(core));
  const bool may_ask = search.replays + kRescueNudges <= core.policy.attribution.replays_max;
  if (!recovers && !look.asked_again && may_ask) {
    look.asked_again = true;
    search.replays += kRescueNudges;
    for (int64_t seed = 1; seed <= kRescueNudges; ++seed) order_rescue(core, look.prefix, seed);
    return std::nullopt;
  }
  core.explain(fmt::format("Rescuing {} site(s) leaves {} ± {} and {}.",
                           search.rescued(look.prefix).size(), percent(left.mean_percent),
                           percent(left.error_percent),
                           recovers.value_or(false) ? "recovers" : "does not recover"));
  if (recovers.value_or(false)) {
    investigation.left_percent = left.mean_percent;
    investigation.left_error_percent = left.error_percent;
  }
  return recovers.value_or(false);
}

// Gives the search an answer, and forgets what has become pointless with it.
void answer_search(Core& core, int64_t prefix, bool recovers) {
  State& s = core.s;
  Case& investigation = *s.investigation;
  AttributionSearch& search = investigation.search;
  const size_t found = search.guilty.size();
  search.answer(prefix, recovers);
  const auto pointless = [&](int64_t asked) {
    return search.guilty.size() != found ||
           std::ranges::find(search.asked, asked) == search.asked.end();
  };
  std::erase_if(s.replays, [&](const PendingReplay& replay) {
    return replay.role == "rescue" && pointless(replay.number);
  });
  std::erase_if(investigation.looks,
                [&](const RescueLook& look) { return pointless(look.prefix); });
  pump_search(core);
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
  ask_own_fp8(s, wanted);
  order(core, window, "scores", 0, std::move(wanted));
}

void handle_scores(Core& core, const ReplayFinished& result) {
  std::vector<SiteScore> scores = result.scores;
  if (scores.size() > kScoresMax) scores.resize(kScoresMax);
  core.s.investigation->scores = std::move(scores);
  start_search(core);
}

void scores_failed(Core& core) { start_search(core); }

void handle_rescue(Core& core, int64_t prefix, const ReplayFinished& result) {
  Case& investigation = *core.s.investigation;
  const WindowState& window = *find_window(core.s, investigation.window);
  const double left = left_by(core, result, window);
  if (prefix == kSecondRescue) {
    const bool other = result.verifier != investigation.rescued_by;
    const RescueLeft seen{left, error_of_rescue(core, window, 1), 1};
    if (!other || rescue_recovers(seen, limit_of_case(core)).value_or(true)) return finish(core);
    return give_up(
        core,
        fmt::format("{} and {} contradict each other about what rescuing {} site(s) "
                    "leaves",
                    investigation.rescued_by, result.verifier, investigation.search.guilty.size()));
  }
  auto look = std::ranges::find(investigation.looks, prefix, &RescueLook::prefix);
  if (look == investigation.looks.end())
    look = investigation.looks.insert(look, RescueLook{prefix, 0, 0, false});
  look->count += 1;
  look->sum_percent += left;
  if (const auto recovers = judge_look(core, *look)) {
    if (*recovers) investigation.rescued_by = result.on_trainer ? "" : result.verifier;
    answer_search(core, prefix, *recovers);
  }
}

void rescue_failed(Core& core, int64_t prefix) {
  if (prefix == kSecondRescue) return finish(core);
  Case& investigation = *core.s.investigation;
  const auto look = std::ranges::find(investigation.looks, prefix, &RescueLook::prefix);
  if (look != investigation.looks.end()) {
    // The others of the set say enough.
    if (const auto recovers = judge_look(core, *look)) answer_search(core, prefix, *recovers);
    return;
  }
  investigation.search.failed(prefix);
  pump_search(core);
}

}  // namespace gnomon::decide
