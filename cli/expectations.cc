// What an injected fault should lead to, and what a summary says in words.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/counted.h"
#include "base/errors.h"
#include "base/progress.h"
#include "cli/summary.h"

namespace gnomon::cli {
namespace {

bool contains(const std::vector<std::string>& list, const std::string& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

bool blamed_on_fp8(const RunSummary& summary) {
  return contains(summary.verdicts, "fp8_numerics") || contains(summary.actions, "pin") ||
         contains(summary.actions, "bf16");
}

void expect_fp8(const RunSummary& summary, std::vector<std::string>& unmet) {
  if (!summary.detected) unmet.push_back("the injected fault was not detected");
  if (summary.verdict != "fp8_numerics") {
    unmet.push_back(fmt::format("the verdict is {}, not fp8_numerics", summary.verdict));
  }
  bool site_found = std::any_of(
      summary.faults.begin(), summary.faults.end(),
      [&](const InjectedFault& fault) { return contains(summary.blamed_sites, fault.site); });
  if (!site_found) {
    unmet.push_back(
        fmt::format("the faulty site {} is not among the blamed ones ({})",
                    summary.faults.empty() ? "(none was injected)" : summary.faults.front().site,
                    fmt::join(summary.blamed_sites, ", ")));
  }
  if (!summary.plan_changed) unmet.push_back("no GEMM was taken out of FP8: not contained");
  if (!summary.recovered) unmet.push_back("no decision says that the run recovered");
  if (!summary.returned_to_fp8) unmet.push_back("the run did not return to FP8");
  if (summary.false_alarms > 0) {
    unmet.push_back(fmt::format("{} false alarm(s)", summary.false_alarms));
  }
}

void expect_spike(const RunSummary& summary, std::vector<std::string>& unmet) {
  if (blamed_on_fp8(summary)) unmet.push_back("a spike that BF16 has too was blamed on FP8");
  if (summary.plan_changed) unmet.push_back("the precision plan was changed for a generic spike");
  if (summary.false_alarms > 0) {
    unmet.push_back(fmt::format("{} false alarm(s)", summary.false_alarms));
  }
}

void expect_bitflip(const RunSummary& summary, std::vector<std::string>& unmet) {
  if (!summary.detected) unmet.push_back("the flipped bit was not detected");
  if (summary.verdict != "transient_fault") {
    unmet.push_back(fmt::format("the verdict is {}, not transient_fault", summary.verdict));
  }
  if (blamed_on_fp8(summary) || summary.plan_changed) {
    unmet.push_back("a hardware fault was blamed on precision");
  }
  if (!summary.rolled_back) unmet.push_back("the run was not rolled back behind the flipped bit");
}

void expect_none(const RunSummary& summary, std::vector<std::string>& unmet) {
  if (summary.alarms > 0) {
    unmet.push_back(fmt::format("{} alarm(s) in a run without any fault", summary.alarms));
  }
  if (!summary.actions.empty()) {
    unmet.push_back(fmt::format("action without any fault: {}", fmt::join(summary.actions, ", ")));
  }
}

std::string spoken(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

std::string detection_in_words(const RunSummary& summary) {
  if (summary.faults.empty()) {
    return summary.alarms == 0 ? "No fault was injected and no alarm was raised."
                               : "Alarms raised: " + std::to_string(summary.alarms) + ".";
  }
  const InjectedFault& fault = summary.faults.front();
  std::string what = fault.description.empty() ? fault.kind : fault.description;
  if (what.ends_with('.')) what.pop_back();
  std::string text = fmt::format("A fault was injected: {}.", what);
  if (!summary.detected) return text + " It was not detected.";
  if (summary.windows_to_detect == 1)
    return text + " The first measured window with it in raised the alarm.";
  return text + fmt::format(" The alarm came with measured window {} that had it in.",
                            summary.windows_to_detect);
}

}  // namespace

std::vector<std::string> unmet_expectations(const RunSummary& summary,
                                            const std::string& expectation) {
  std::vector<std::string> unmet;
  if (summary.state != "completed") {
    unmet.push_back(fmt::format("the run is {}, not completed", summary.state));
  }
  if (summary.missing_steps > 0) {
    unmet.push_back(
        fmt::format("{} step(s) were trained but are not in the ledger", summary.missing_steps));
  }
  if (expectation == "fp8") {
    expect_fp8(summary, unmet);
  } else if (expectation == "spike") {
    expect_spike(summary, unmet);
  } else if (expectation == "bitflip") {
    expect_bitflip(summary, unmet);
  } else if (expectation == "none") {
    expect_none(summary, unmet);
  } else {
    throw ConfigError("", 0, "--expect", expectation, "none, fp8, spike or bitflip");
  }
  return unmet;
}

std::string summary_in_words(const RunSummary& summary) {
  std::string text = fmt::format("Run {} is {} at step {}, after {} and {}. ", summary.run,
                                 summary.state, summary.steps, counted(summary.attempts, "attempt"),
                                 counted(summary.windows, "measured window"));
  text += detection_in_words(summary);
  if (summary.alarms > 0) {
    text += fmt::format(" Verdict: {}. Action: {}", spoken(summary.verdict), summary.action);
    if (!summary.blamed_sites.empty()) {
      text += fmt::format(" ({})", fmt::join(summary.blamed_sites, ", "));
    }
    text += fmt::format("; thrown away: {}.", counted(summary.steps_lost, "step"));
  }
  if (summary.plan_changed) {
    text += summary.returned_to_fp8 ? " The run is back in its own FP8 plan."
                                    : " The run has not returned to its own FP8 plan.";
  }
  if (summary.false_alarms > 0) {
    text += fmt::format(" False alarms: {}.", summary.false_alarms);
  }
  if (summary.final_loss) {
    text +=
        fmt::format(" Final held-out loss in BF16: {:.4f} nats per token.", *summary.final_loss);
  }
  text += fmt::format(" It took {}", format_duration(summary.wall_seconds));
  if (summary.net_speedup && summary.net_speedup->statement.useful_steps > 0) {
    return text + ". " + summary.net_speedup->statement.sentence;
  }
  return text + fmt::format("; verification was {:.1f}% of all compute.",
                            100 * summary.verification_share);
}

}  // namespace gnomon::cli
