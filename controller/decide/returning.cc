#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "controller/decide/core.h"
#include "controller/decide/gap_evalues.h"
#include "controller/decide/plans.h"

namespace gnomon::decide {
namespace {

namespace json = boost::json;

// Numbers of an ordered probe.
constexpr int64_t kByAnybody = 0, kByAnother = 1;

const double kHopeless = std::log(1.0 / 20);  // of a probe's evidence, logarithm

void wait_longer(Core& core) {
  const Policy::Return& policy = core.policy.returning;
  const double longer =
      std::ceil(static_cast<double>(std::max<int64_t>(1, core.s.wait_windows)) * policy.backoff);
  core.s.wait_windows =
      static_cast<int64_t>(std::min(longer, static_cast<double>(policy.quiet_windows_max)));
}

void forget_probes(Containment& containment) {
  containment.probe_passes = 0;
  containment.quiet = 0;
  containment.log_evidence = 0;
  containment.probed_by.clear();
  containment.probed_by_others = false;
}

double scale_of_probe(const Core& core, const WindowState& window) {
  return gap_scale_percent(core.s.watch.gap.scale, gap_sample(core, window),
                           gap_settings(core.policy));
}

// A single probe that is worse than this fails: no healthy window shows so much.
double probe_limit(const Core& core, const WindowState& window) {
  constexpr double kHealthyMost = 4;  // deviations
  const double most = tolerated_percent(core) + kHealthyMost * scale_of_probe(core, window);
  return std::min(most, core.policy.detector.ceiling_percent);
}

// The mean gap that all probes together must speak against: one deviation more than is tolerated,
// and less where the gap that the run left FP8 for was hardly more itself. A fault of half that gap
// would be one that windows after the return are slow to see.
double return_margin(const Core& core, const WindowState& window) {
  const double tolerated = tolerated_percent(core);
  const double scale = scale_of_probe(core, window);
  const double level = core.s.containment->level_percent;
  const bool known = std::isfinite(level) && level > 0;
  const double half = known ? (level - tolerated) / 2 : scale;
  return tolerated + std::clamp(half, scale / 2, scale);
}

// Of the e-value against "FP8 is worse by the margin" on average: that of gap_detector.h the other
// way round.
double log_equivalence(const Core& core, const WindowState& window, double d_percent) {
  const GapScale& learned = core.s.watch.gap.scale;
  const double x = (return_margin(core, window) - d_percent) / scale_of_probe(core, window);
  const double confidence = scale_confidence(learned.freedom);
  const bool known = std::isfinite(confidence);
  const bool symmetric = core.policy.detector.noise == "symmetric";
  const GapEvalues e = gap_evalues(x, known ? x / confidence : 0, known, symmetric);
  const auto& members = gap_members(symmetric);
  double mean = 0;
  for (size_t i = 0; i < e.size(); ++i) mean += members[i].weight * e[i];
  return std::log(mean);
}

std::string contained_run(const Containment& containment) {
  if (containment.rung != "pin") return "the run in BF16";
  const size_t count = containment.sites.size();
  return fmt::format("the run with {} {} in BF16", count, count == 1 ? "site" : "sites");
}

bool enough_evidence(const Core& core) {
  const Containment& containment = *core.s.containment;
  const Policy::Return& policy = core.policy.returning;
  return containment.probe_passes >= policy.probe_passes &&
         containment.log_evidence >= std::log(policy.evidence);
}

// Nobody's word is enough: two sources have passed a probe each, or nobody else could be asked.
bool enough_sources(const Core& core) { return core.s.containment->probed_by_others; }

void go_back(Core& core) {
  State& s = core.s;
  const KnownPlan base = base_plan(s);
  const Containment& containment = *s.containment;
  const std::string sentence = fmt::format(
      "FP8 comes back: {} probes in a row under the run's own plan ended on average less than {} "
      "above {} (evidence {:.3g} of {:.3g}).",
      containment.probe_passes, percent(containment.margin_percent), contained_run(containment),
      std::exp(std::min(containment.log_evidence, 700.0)), core.policy.returning.evidence);
  RecordDecision& decision =
      core.record("return", core.enforcing() ? sentence : sentence + " Not enforced in this mode.",
                  {{"probe_passes", s.containment->probe_passes},
                   {"log_evidence", s.containment->log_evidence},
                   {"plan_version", base.version},
                   {"rung", s.containment->rung}});
  decision.action = "return";
  decision.enforced = core.enforcing();
  decision.sites = s.containment->sites;
  if (!core.enforcing()) {
    forget_probes(*s.containment);
    return;
  }
  PendingDirective pending;
  pending.kind = "set_plan";
  pending.purpose = "return";
  pending.plan_version = base.version;
  issue(core, pending, base.toml, sentence);
}

// The probe is answered; a probe window ends with it, a shadow window when nothing else is waited
// for.
void finish_probe_window(Core& core, int64_t id, const std::string& outcome) {
  WindowState& window = *find_window(core.s, id);
  window.probe_pending = false;
  if (window.kind == "probe") return close_window(core, id, outcome);
  finish_window(core, id);
}

void probe_unusable(Core& core, int64_t window_id, const std::string& why) {
  core.say(fmt::format("{}: the probe could not be judged: {}.",
                       window_name(*find_window(core.s, window_id)), why));
  finish_probe_window(core, window_id, "failed");
}

// A probe by the same source although another one was asked for: there is nobody else.
void note_source(Containment& containment, const PendingReplay& ordered,
                 const std::string& verifier) {
  const bool first = containment.probed_by.empty();
  if (first) containment.probed_by = verifier;
  const bool other = !first && containment.probed_by != verifier;
  containment.probed_by_others |= other || ordered.number == kByAnother;
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
  if (under_way + s.containment->probe_passes < core.policy.returning.probe_passes) return true;
  return under_way == 0 && !(enough_evidence(core) && enough_sources(core));
}

void order_probe(Core& core, WindowState& window) {
  const Containment& containment = *core.s.containment;
  // One verifier alone is not all there is where the trainer answers, which does the last probe.
  const bool trainer_is_other =
      core.s.run.trainer_answers() && believed_verifiers(core.s).size() < 2;
  OrderReplay wanted;
  wanted.arm = "plan";
  wanted.plan = base_plan(core.s).toml;
  wanted.evaluate_endpoints = true;
  wanted.priority = kPriorityProbe;
  wanted.avoid = containment.probed_by;
  wanted.on_trainer = trainer_is_other && enough_evidence(core);
  const bool another = !wanted.avoid.empty() && (wanted.on_trainer || !trainer_is_other);
  window.probe_pending = true;
  order(core, window, "probe", another ? kByAnother : kByAnybody, std::move(wanted));
}

void return_if_due(Core& core) {
  const State& s = core.s;
  if (!s.containment || s.containment->stays || s.investigation || s.directive || s.ended) return;
  if (core.held() || !core.muted().empty()) return;
  if (enough_evidence(core) && enough_sources(core)) go_back(core);
}

void take_probe(Core& core, const PendingReplay& ordered, const ReplayFinished& replay) {
  State& s = core.s;
  const int64_t window_id = ordered.window;
  WindowState& window = *find_window(s, window_id);
  const std::string name = window_name(window);
  const Measurement measured = measure_probe(replay);
  if (!s.containment || s.containment->plan_version != window.plan_version || core.held()) {
    core.say(fmt::format("{}: the probe's answer comes too late.", name));
    return finish_probe_window(core, window_id, "skipped");
  }
  if (const std::string muted = core.muted(); !muted.empty()) {
    core.say(fmt::format("{}: the probe leads to nothing: {}.", name, muted));
    return finish_probe_window(core, window_id, "skipped");
  }
  if (!measured.unusable.empty()) {
    return probe_unusable(core, window_id, measured.unusable);
  }
  if (s.watch.instrument.broken) {
    core.say(fmt::format("{}: the probe is not counted: the instrument is broken.", name));
    return finish_probe_window(core, window_id, "skipped");
  }
  if (const auto spike = generic_spike_in(s, window)) {
    core.say(fmt::format("{}: the probe is not counted: step {} in it spiked in BF16 too.", name,
                         *spike));
    return finish_probe_window(core, window_id, "skipped");
  }
  const double limit = probe_limit(core, window);
  bool passes = *measured.d_percent <= limit;
  s.containment->margin_percent = return_margin(core, window);
  if (passes) s.containment->log_evidence += log_equivalence(core, window, *measured.d_percent);
  // One near the limit after the other: that is not as good.
  passes = passes && s.containment->log_evidence > kHopeless;
  RecordDecision& decision = core.record(
      "probe",
      fmt::format("{}: replayed under the run's own FP8 plan, the held-out loss ends {} above {}; "
                  "limit {}: {}.",
                  name, percent(*measured.d_percent), contained_run(*s.containment), percent(limit),
                  passes ? "passed" : "failed"),
      {{"window", window_id},
       {"d_percent", number(*measured.d_percent)},
       {"gap", measured.gap ? number(*measured.gap) : json::value(nullptr)},
       {"run_loss", number(*measured.reference)},
       {"limit_percent", number(limit)},
       {"margin_percent", number(s.containment->margin_percent)},
       {"evidence", number(std::exp(std::min(s.containment->log_evidence, 700.0)))},
       {"passed", passes}});
  decision.window = window_id;
  if (window.kind == "probe") window.measured = measured;
  finish_probe_window(core, window_id, passes ? "quiet" : "alarm");
  if (passes) {
    s.containment->probe_passes += 1;
    note_source(*s.containment, ordered, replay.verifier);
    return return_if_due(core);
  }
  wait_longer(core);
  forget_probes(*s.containment);
}

void probe_failed(Core& core, const PendingReplay& ordered, const std::string& why) {
  // The trainer could not: there is nobody else.
  const bool on_trainer = ordered.deadline > 0;
  if (core.s.containment && on_trainer) core.s.containment->probed_by_others = true;
  probe_unusable(core, ordered.window, why);
}

void finish_return(Core& core) {
  State& s = core.s;
  s.containment.reset();
  s.recovery.reset();
  s.quiet_since_return = 0;
  wait_longer(core);
  core.say("The run is back in its own plan.");
}

void refuse_return(Core& core) {
  if (!core.s.containment) return;
  forget_probes(*core.s.containment);
}

}  // namespace gnomon::decide
