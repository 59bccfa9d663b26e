#include "controller/decide/returning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/printable.h"
#include "controller/decide/confirm.h"
#include "controller/decide/directives.h"
#include "controller/decide/evidence_windows.h"
#include "controller/decide/gap_evalues.h"
#include "controller/decide/gap_settings.h"
#include "controller/decide/measurement.h"
#include "controller/decide/plans.h"
#include "controller/decide/trust.h"
#include "controller/decide/verifier_records.h"
#include "controller/decide/windows.h"
#include "controller/decide/witnesses.h"

namespace gnomon::decide {
namespace {

namespace json = boost::json;

const double kHopeless = std::log(1.0 / 20);  // evidence of a series, logarithm
constexpr int64_t kProbesMost = 48;           // of a series that comes to no end
constexpr int64_t kUnansweredMost = 3;        // of a series
constexpr double kEvidenceLeast = 20;         // whose root one probe may always give
constexpr double kSlack = 1e-9;               // of sums of logarithms
constexpr double kFreedomLeast = 4;           // that a scale is taken to have been learned with

double needed(const Core& core) { return std::log(core.policy.returning.evidence); }

double most_of_one(const Core& core) {
  return std::max(needed(core), std::log(kEvidenceLeast)) / 2;
}

double log_evidence(const ProbeSeries& series) {
  double sum = 0;
  for (const PassedProbe& probe : series.passed) sum += probe.log_evidence;
  return sum;
}

double evidence(const ProbeSeries& series) {
  return std::exp(std::min(log_evidence(series), 700.0));
}

double log_evidence_of(const ProbeSeries& series, const std::string& source) {
  double sum = 0;
  for (const PassedProbe& probe : series.passed)
    sum += probe.source == source ? probe.log_evidence : 0;
  return sum;
}

// The source that has given most of the evidence; empty where none has.
std::string foremost(const ProbeSeries& series) {
  std::string most;
  for (const PassedProbe& probe : series.passed) {
    const bool more =
        most.empty() || log_evidence_of(series, probe.source) > log_evidence_of(series, most);
    if (more) most = probe.source;
  }
  return most;
}

void wait_longer(Core& core) {
  const Policy::Return& policy = core.policy.returning;
  const double longer =
      std::ceil(static_cast<double>(std::max<int64_t>(1, core.s.wait_windows)) * policy.backoff);
  core.s.wait_windows =
      static_cast<int64_t>(std::min(longer, static_cast<double>(policy.quiet_windows_max)));
}

void end_series(Core& core) {
  core.s.containment->probes = ProbeSeries{};
  core.s.containment->probes.from_replay = core.s.next_replay;
  core.s.containment->quiet = 0;
  wait_longer(core);
}

double scale_of_probe(const Core& core, const WindowState& window) {
  return gap_scale_percent(core.s.watch.gap.scale, gap_sample(core, window),
                           gap_settings(core.policy));
}

double tolerated(const Core& core) {
  return std::max(tolerated_percent(core), core.s.containment->accepted_percent);
}

// A single probe that is worse than this fails: no healthy window shows so much.
double probe_limit(const Core& core, const WindowState& window) {
  constexpr double kHealthyMost = 4;  // deviations
  const double most = tolerated(core) + kHealthyMost * scale_of_probe(core, window);
  return std::min(most, core.policy.detector.ceiling_percent);
}

// The mean gap that all probes together must speak against: one deviation more than is tolerated,
// and down to half a one where the gap that the run left FP8 for was hardly more itself.
double return_margin(const Core& core, const WindowState& window) {
  const double scale = scale_of_probe(core, window);
  const double level = core.s.containment->level_percent;
  const double half = std::isfinite(level) && level > 0 ? (level - tolerated(core)) / 2 : scale;
  return std::min(tolerated(core) + std::clamp(half, scale / 2, scale),
                  core.policy.detector.ceiling_percent);
}

// The logarithm of the e-value against "FP8 is worse by the margin" on average: gap_detector.h's
// the other way round. One probe gives at most the root of what is needed: no single one is enough.
double log_equivalence(const Core& core, const WindowState& window, double d_percent) {
  const double x = (return_margin(core, window) - d_percent) / scale_of_probe(core, window);
  const double freedom = std::max(core.s.watch.gap.scale.freedom, kFreedomLeast);
  const bool symmetric = core.policy.detector.noise == "symmetric";
  const GapEvalues e = gap_evalues(x, x / scale_confidence(freedom), true, symmetric);
  const auto& members = gap_members(symmetric);
  double mean = 0;
  for (size_t i = 0; i < e.size(); ++i) mean += members[i].weight * e[i];
  return std::min(std::log(mean), most_of_one(core));
}

std::string contained_run(const Containment& containment) {
  if (containment.rung == "bf16") return "the run in BF16";
  if (containment.rung != "pin") return "the run as it is contained";
  const size_t count = containment.sites.size();
  const std::string precision = pinned_precision(containment.sites);
  return fmt::format("the run with {} {} in {}", count, count == 1 ? "site" : "sites", precision);
}

bool trainer_is_left(const Core& core) {
  return core.enforcing() && core.s.run.trainer_answers() &&
         !core.s.containment->probes.trainer_cannot;
}

bool verifiers_are_left(const Core& core) {
  const ProbeSeries& series = core.s.containment->probes;
  return believed_verifiers(core.s).size() >= 2 && !series.nobody_else && !series.others_cannot;
}

// The probes say enough, all together and without the source that says most (to its root: nobody's
// word is enough), unless nobody else can be asked.
bool enough(const Core& core) {
  const ProbeSeries& series = core.s.containment->probes;
  if (std::ssize(series.passed) < core.policy.returning.probe_passes ||
      log_evidence(series) < needed(core) - kSlack)
    return false;
  const bool trainer_alone = believed_verifiers(core.s).empty();
  if (trainer_alone || (!verifiers_are_left(core) && !trainer_is_left(core))) return true;
  const std::string most = foremost(series);
  double others = 0;
  for (const PassedProbe& probe : series.passed)
    others += probe.source == most ? 0 : probe.log_evidence;
  return others >= needed(core) / 2 - kSlack;
}

void go_back(Core& core) {
  State& s = core.s;
  const KnownPlan base = base_plan(s);
  const ProbeSeries& series = s.containment->probes;
  const std::string sentence = fmt::format(
      "FP8 comes back: {} probes in a row say that the run's own plan costs less than {} more than "
      "{} (evidence {}, {} are needed).",
      series.passed.size(), percent(series.margin_percent), contained_run(*s.containment),
      plain_number(evidence(series)), plain_number(core.policy.returning.evidence));
  RecordDecision& decision =
      core.record("return", core.enforcing() ? sentence : sentence + " Not enforced in this mode.",
                  {{"probe_passes", series.passed.size()},
                   {"log_evidence", log_evidence(series)},
                   {"plan_version", base.version},
                   {"rung", s.containment->rung}});
  decision.action = "return";
  decision.enforced = core.enforcing();
  decision.sites = s.containment->sites;
  if (!core.enforcing()) return end_series(core);
  PendingDirective pending;
  pending.kind = "set_plan";
  pending.purpose = "return";
  pending.plan_version = base.version;
  issue(core, pending, base.toml, sentence);
}

// The probe is answered; a probe window ends with it, a shadow window when nothing else is waited
// for.
void finish_probe_window(Core& core, int64_t id, WindowStatus outcome,
                         const std::string& why = {}) {
  WindowState& window = *find_window(core.s, id);
  window.probe_pending = false;
  if (window.kind == "probe") return close_window(core, id, outcome, why);
  finish_window(core, id);
}

// An answer that says nothing, or none: the next probe waits as the first one did, and after some
// of them the series has failed.
void set_back(Core& core, const PendingReplay& ordered, const std::string& name) {
  if (!core.s.containment || ordered.id < core.s.containment->probes.from_replay) return;
  core.s.containment->quiet = 0;
  core.s.containment->probes.unanswered += 1;
  if (core.s.containment->probes.unanswered < kUnansweredMost) return;
  core.record("probe",
              fmt::format("{}: {} probes could not be judged: FP8 waits longer before it "
                          "is tried again. Look at what the verifiers say.",
                          name, kUnansweredMost),
              {{"passed", false}});
  end_series(core);
}

// Why a probe's answer is not counted; empty where it is.
std::string not_counted(const Core& core, const PendingReplay& ordered, const WindowState& window,
                        const ReplayFinished& replay, double d_percent) {
  const State& s = core.s;
  if (s.watch.instrument.broken) return "the instrument is broken";
  if (const auto spike = generic_spike_in(s, window))
    return fmt::format("step {} in it spiked in BF16 too", *spike);
  if (!believed(s, replay.verifier)) return replay.verifier + " is not believed";
  if (ordered.id < s.containment->probes.from_replay)
    return "it was ordered before another one failed";
  if (d_percent < -core.policy.detector.ceiling_percent)
    return fmt::format("D = {}, and FP8 is not so much better than BF16", percent(d_percent));
  return "";
}

json::object probe_evidence(const WindowState& window, const Witness& answer, double limit,
                            const ProbeSeries& series) {
  json::array all;
  for (const Witness& one : window.probe_answers)
    all.push_back({{"verifier", one.verifier}, {"d_percent", number(*one.measured.d_percent)}});
  const Measurement& measured = answer.measured;
  return {{"window", window.id},
          {"d_percent", number(*measured.d_percent)},
          {"gap", measured.gap ? number(*measured.gap) : json::value(nullptr)},
          {"run_loss", number(*measured.reference)},
          {"margin_percent", number(series.margin_percent)},
          {"evidence", number(evidence(series))},
          {"limit_percent", number(limit)},
          {"answers", std::move(all)}};
}

// Takes a probe's D into the series; whether it passes.
bool weigh_probe(Core& core, const WindowState& window, const Witness& answer) {
  ProbeSeries& series = core.s.containment->probes;
  const double d = *answer.measured.d_percent;
  series.margin_percent = return_margin(core, window);
  if (!(d <= probe_limit(core, window))) return false;
  series.passed.push_back(
      {window.start.step, window.end_step(), answer.verifier, log_equivalence(core, window, d)});
  const int64_t most = std::max<int64_t>(kProbesMost, 2 * core.policy.returning.probe_passes);
  return log_evidence(series) > kHopeless && (std::ssize(series.passed) < most || enough(core));
}

// The series learns whether a verifier beside the one that was avoided has come forward.
void note_source(ProbeSeries& series, const PendingReplay& ordered, const ReplayFinished& replay) {
  if (ordered.avoid.empty()) return;
  // A trainer takes what it was not asked for where no verifier speaks.
  const bool for_others = replay.on_trainer && ordered.deadline == 0;
  if (replay.on_trainer && !for_others) return;
  series.nobody_else = for_others || avoids(ordered.avoid, replay.verifier);
  if (!series.nobody_else) series.others_cannot = false;
}

OrderReplay probe_replay(const Core& core) {
  OrderReplay wanted;
  wanted.arm = "plan";
  wanted.plan = base_plan(core.s).toml;
  wanted.evaluate_endpoints = true;
  wanted.priority = kPriorityProbe;
  return wanted;
}

bool has_probed(const WindowState& window, const std::string& source) {
  return std::ranges::find(window.probe_answers, source, &Witness::verifier) !=
         window.probe_answers.end();
}

// Orders the probe of a source that has not answered yet; false: nobody is left.
bool ask_another(Core& core, WindowState& window) {
  const State& s = core.s;
  const bool others = std::ranges::any_of(
      believed_verifiers(s), [&](const std::string& known) { return !has_probed(window, known); });
  const bool trainer =
      trainer_is_left(core) && std::ranges::none_of(window.probe_answers, &Witness::on_trainer);
  if (s.ended || !(others || trainer)) return false;
  OrderReplay wanted = probe_replay(core);
  wanted.on_trainer = !others;
  for (const Witness& answer : window.probe_answers) {
    if (answer.on_trainer) continue;
    if (!wanted.avoid.empty()) wanted.avoid += '\n';
    wanted.avoid += answer.verifier;
  }
  order(core, window, "probe", std::ssize(window.probe_answers), std::move(wanted));
  return true;
}

// False for a probe of a containment or a series that is over.
bool is_of_series(const Core& core, const PendingReplay& ordered, const WindowState& window) {
  const std::optional<Containment>& now = core.s.containment;
  return now && now->plan_version == window.plan_version && ordered.id >= now->probes.from_replay;
}

std::string answer_words(const WindowState& window) {
  std::string all;
  for (const Witness& answer : window.probe_answers) {
    all += fmt::format("{}{} by {}", all.empty() ? "" : ", ", percent(*answer.measured.d_percent),
                       answer.verifier);
  }
  return all;
}

// The one of three that contradicts both others, where these agree.
std::optional<Witness> stands_alone(const Core& core, const std::vector<Witness>& answers) {
  if (answers.size() < 3) return std::nullopt;
  const auto agree = [&](size_t i, size_t j, double noise) {
    return compare_witnesses(answers[i], answers[j], noise).agrees;
  };
  const double most = noise_that_names(core);
  for (size_t i = 0; i < 3; ++i) {
    const size_t j = (i + 1) % 3, k = (i + 2) % 3;
    if (agree(j, k, noise_between(core)) && !agree(i, j, most) && !agree(i, k, most))
      return answers[i];
  }
  return std::nullopt;
}

// Nobody's word alone keeps a run in BF16: what fails is asked of a second source, and a third one
// says which of two is right.
void judge_probe(Core& core, const PendingReplay& ordered, bool may_ask) {
  State& s = core.s;
  WindowState& window = *find_window(s, ordered.window);
  const std::vector<Witness>& answers = window.probe_answers;
  const std::string name = window_name(window);
  const double limit = probe_limit(core, window);
  const auto fails = [&](const Witness& one) { return !(*one.measured.d_percent <= limit); };
  const auto failed = std::ranges::count_if(answers, fails);
  const auto passed = std::ssize(answers) - failed;
  const bool open = failed > 0 && std::abs(failed - passed) <= 1 && answers.size() < 3;
  if (open && may_ask && ask_another(core, window)) {
    return core.explain(
        fmt::format("{}: the probe ends above {} by {}; limit {}. Another source "
                    "is asked.",
                    name, contained_run(*s.containment), answer_words(window), percent(limit)));
  }
  if (failed == passed) {
    core.record("probe",
                fmt::format("{}: the probe is not counted: its sources contradict each other ({}; "
                            "limit {}), and nobody else can be asked. Start a third verifier.",
                            name, answer_words(window), percent(limit)),
                {{"window", window.id}, {"passed", false}})
        .window = window.id;
    set_back(core, ordered, name);
    return finish_probe_window(core, window.id, "skipped", "its sources contradict each other");
  }
  const auto counts = [&](const Witness& one) { return fails(one) == (failed > passed); };
  const Witness answer = *std::ranges::find_if(answers, counts);
  const std::optional<Witness> liar = stands_alone(core, answers);
  // One near the limit after the other: that is not as good.
  const bool passes = weigh_probe(core, window, answer);
  json::object evidence = probe_evidence(window, answer, limit, s.containment->probes);
  evidence["passed"] = passes;
  const std::string sentence = fmt::format(
      "{}: replayed under the run's own FP8 plan, the held-out loss ends {} above {}; limit {}: "
      "{}.",
      name, percent(*answer.measured.d_percent), contained_run(*s.containment), percent(limit),
      passes ? "passed" : "failed");
  core.record("probe", sentence, std::move(evidence)).window = window.id;
  if (window.kind == "probe") window.measured = answer.measured;
  const std::string said = answer_words(window);
  finish_probe_window(core, ordered.window, passes ? WindowStatus("quiet") : "alarm");
  if (liar && !liar->on_trainer) {
    distrust(core, liar->verifier,
             fmt::format("{}: {} stands alone in a probe ({}; limit {}).", name, liar->verifier,
                         said, percent(limit)),
             "broken_instrument", ordered.window);
  }
  passes ? return_if_due(core) : end_series(core);
}

}  // namespace

void note_quiet(Core& core, int64_t plan_version) {
  State& s = core.s;
  const bool contained = s.containment && s.containment->plan_version == plan_version;
  if (contained && s.containment->recovered) s.containment->quiet += 1;
  if (!s.containment && s.quiet_since_return >= 0) s.quiet_since_return += 1;
  return_if_due(core);
}

bool probe_due(const Core& core) {
  const State& s = core.s;
  if (!core.policy.returning.enabled || s.ended || s.investigation || s.directive) return false;
  if (!s.containment || !s.containment->recovered || s.containment->stays || core.held())
    return false;
  if (!core.muted().empty()) return false;
  const int64_t under_way =
      std::count_if(s.windows.begin(), s.windows.end(),
                    [](const WindowState& window) { return window.probe_pending; });
  if (s.watch.instrument.broken || s.containment->quiet < s.wait_windows) return false;
  const int64_t passed = std::ssize(s.containment->probes.passed);
  return under_way + passed < core.policy.returning.probe_passes ||
         (under_way == 0 && !enough(core));
}

void order_probe(Core& core, WindowState& window) {
  const ProbeSeries& series = core.s.containment->probes;
  // What follows a spike differs by chance.
  if (generic_spike_in(core.s, window)) {
    if (window.kind == "probe") close_window(core, window.id, "skipped", "BF16 spiked in it, too");
    return;
  }
  OrderReplay wanted = probe_replay(core);
  // The trainer is stopped for the last ones alone.
  wanted.on_trainer = !verifiers_are_left(core) && trainer_is_left(core) &&
                      !believed_verifiers(core.s).empty() && !series.passed.empty() &&
                      log_evidence(series) >= needed(core) - kSlack;
  // One that was silent may be there again.
  if (!wanted.on_trainer && !series.others_cannot && believed_verifiers(core.s).size() >= 2)
    wanted.avoid = foremost(series);
  window.probe_pending = true;
  window.probe_answers.clear();
  order(core, window, "probe", 0, std::move(wanted));
}

void return_if_due(Core& core) {
  const State& s = core.s;
  if (!s.containment || s.containment->stays || s.investigation || s.directive || s.ended) return;
  if (core.held() || !core.muted().empty() || s.watch.instrument.broken) return;
  if (enough(core)) go_back(core);
}

void handle_probe(Core& core, const PendingReplay& ordered, const ReplayFinished& replay) {
  State& s = core.s;
  const int64_t window_id = ordered.window;
  WindowState& window = *find_window(s, window_id);
  const std::string name = window_name(window);
  const Measurement measured = measure_probe(replay);
  if (!s.containment || s.containment->plan_version != window.plan_version || core.held()) {
    core.explain(fmt::format("{}: the probe's answer comes too late.", name));
    return finish_probe_window(core, window_id, "skipped", "its answer came too late");
  }
  if (const std::string muted = core.muted(); !muted.empty()) {
    core.explain(fmt::format("{}: the probe leads to nothing: {}.", name, muted));
    return finish_probe_window(core, window_id, "skipped", muted);
  }
  if (!measured.unusable.empty()) return probe_failed(core, ordered, measured.unusable);
  const double d = *measured.d_percent;
  if (const std::string why = not_counted(core, ordered, window, replay, d); !why.empty()) {
    core.explain(fmt::format("{}: the probe is not counted: {}.", name, why));
    if (!window.probe_answers.empty() && is_of_series(core, ordered, window))
      return judge_probe(core, ordered, false);
    set_back(core, ordered, name);
    return finish_probe_window(core, window_id, "skipped", why);
  }
  // Nobody else was there, and the same source has said it once more.
  if (has_probed(window, replay.verifier)) return judge_probe(core, ordered, false);
  note_source(s.containment->probes, ordered, replay);
  window.probe_answers.push_back(witness_of(replay));
  window.probe_answers.back().measured = measured;
  judge_probe(core, ordered, true);
}

void probe_failed(Core& core, const PendingReplay& ordered, const std::string& why) {
  const std::string name = window_name(*find_window(core.s, ordered.window));
  core.explain(fmt::format("{}: the probe could not be judged: {}.", name, why));
  if (core.s.containment && ordered.id >= core.s.containment->probes.from_replay) {
    ProbeSeries& series = core.s.containment->probes;
    series.trainer_cannot |= ordered.deadline > 0;
    series.others_cannot |= !ordered.avoid.empty();
  }
  const WindowState& window = *find_window(core.s, ordered.window);
  if (!window.probe_answers.empty() && is_of_series(core, ordered, window))
    return judge_probe(core, ordered, false);
  set_back(core, ordered, name);
  finish_probe_window(core, ordered.window, "failed", why);
}

void finish_return(Core& core) {
  State& s = core.s;
  s.containment.reset();
  s.recovery.reset();
  s.quiet_since_return = 0;
  wait_longer(core);
  core.explain("The run is back in its own plan.");
}

void refuse_return(Core& core) {
  if (core.s.containment) end_series(core);
}

}  // namespace gnomon::decide
