#include "controller/decide/case.h"

#include <utility>

#include "controller/decide/windows.h"

namespace gnomon::decide {
namespace {

namespace json = boost::json;

json::object answer_evidence(const TriageAnswer& answer) {
  json::object out{{"test", answer.kind}};
  if (answer.seed != 0) out["seed"] = answer.seed;
  if (answer.failed) {
    out["failed"] = true;
    return out;
  }
  if (!answer.verifier.empty()) out["verifier"] = answer.verifier;
  if (answer.reproduction) {
    const Reproduction& same = *answer.reproduction;
    out["reproduces"] = same.reproduces;
    out["bitwise"] = same.bitwise;
    out["first_mismatch_step"] =
        same.first_mismatch_step ? json::value(*same.first_mismatch_step) : json::value(nullptr);
    if (same.other_batch) out["other_batch"] = true;
  }
  if (answer.spike) {
    out["spike_loss"] = number(answer.spike->loss);
    out["spikes"] = answer.spike->spikes;
    out["non_finite"] = answer.spike->non_finite;
  }
  if (answer.end_loss) out["end_loss"] = number(*answer.end_loss);
  if (answer.long_d_percent) {
    out["long_d_percent"] = number(*answer.long_d_percent);
    out["long_steps"] = answer.long_steps;
  }
  return out;
}

json::object verdict_evidence(const Case& investigation) {
  const TriageEvidence& evidence = investigation.evidence;
  json::object out{{"trigger", evidence.trigger}, {"window", investigation.window}};
  if (evidence.finding) out["finding"] = finding_evidence(*evidence.finding);
  if (evidence.measured.d_percent) out["d_percent"] = number(*evidence.measured.d_percent);
  out["chance_excluded"] = evidence.chance_excluded;
  out["confirmation"] = evidence.confirmation;
  if (!evidence.source.empty()) out["bf16_by"] = evidence.source;
  if (evidence.reports_percent) out["reports_percent"] = number(*evidence.reports_percent);
  json::array tests;
  for (const TriageAnswer& answer : evidence.answers) tests.push_back(answer_evidence(answer));
  for (const TriageAnswer& answer : evidence.seconds) {
    json::object again = answer_evidence(answer);
    again["second"] = true;
    tests.push_back(std::move(again));
  }
  out["tests"] = std::move(tests);
  return out;
}

}  // namespace

void open_case(Core& core, int64_t window, TriageEvidence evidence) {
  Case opened;
  opened.window = window;
  opened.stage = "triage";
  opened.evidence = std::move(evidence);
  core.s.investigation = std::move(opened);
}

void end_case(Core& core, WindowStatus outcome, const std::string& why) {
  State& s = core.s;
  const Case ended = std::move(*s.investigation);
  s.investigation.reset();
  for (int64_t id : {ended.far_window, ended.fork_window}) {
    if (id != ended.window) close_window(core, id, "skipped", "its case has ended");
  }
  if (!outcome.empty()) close_window(core, ended.window, outcome, why);
  core.case_ended = true;
}

RecordDecision& record_verdict(Core& core, const Verdict& verdict) {
  const Case& investigation = *core.s.investigation;
  json::object evidence = verdict_evidence(investigation);
  if (json::array batches = other_batches(investigation); !batches.empty())
    evidence["batches"] = std::move(batches);
  RecordDecision& decision = core.record("verdict", verdict.sentence, evidence);
  decision.verdict = verdict.name;
  decision.window = investigation.window;
  return decision;
}

json::object finding_evidence(const SpikeFinding& finding) {
  return {{"step", finding.step},
          {"loss", number(finding.loss)},
          {"grad_norm", finding.grad_norm ? number(*finding.grad_norm) : json::value(nullptr)},
          {"expected", number(finding.expected)},
          {"deviation", number(finding.deviation)},
          {"threshold", finding.threshold ? number(*finding.threshold) : json::value(nullptr)}};
}

json::array batches_evidence(const std::vector<OtherBatch>& batches) {
  json::array out;
  for (const OtherBatch& one : batches)
    out.push_back({{"step", one.step}, {"run", one.run}, {"data", one.data}});
  return out;
}

json::array other_batches(const Case& investigation) {
  for (const TriageAnswer& answer : investigation.evidence.answers) {
    if (!answer.reproduction || answer.reproduction->other_batches.empty()) continue;
    return batches_evidence(answer.reproduction->other_batches);
  }
  return {};
}

std::optional<bool> suffers_in_case(const Core& core, const WindowState& window,
                                    const ReplayFinished& replay) {
  if (!core.s.investigation || !core.s.investigation->evidence.finding) return std::nullopt;
  const SpikeFinding& finding = *core.s.investigation->evidence.finding;
  const bool far = window.id != core.s.investigation->window;
  const SpikeComparison seen = compare_spike(replay, finding, window.steps, far ? kAroundSpike : 0);
  return seen.non_finite || (finding.kind != "non_finite" && seen.spikes);
}

}  // namespace gnomon::decide
