#include "controller/decide/claims.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "controller/decide/case.h"
#include "controller/decide/measurement.h"
#include "controller/decide/stability.h"
#include "controller/decide/windows.h"

namespace gnomon::decide {

bool is_diverged(const ReplayFinished& replay, int64_t steps) {
  const auto sound = [](const std::optional<double>& loss) {
    return loss && std::isfinite(*loss) && *loss > 0;
  };
  return sound(replay.start_loss_bf16) && !sound(replay.replay_end_loss_bf16) &&
         !end_left_out(replay, steps);
}

void record_other_tokens(Core& core, const WindowState& window) {
  const std::vector<OtherBatch>& batches = window.witnesses.front().other_batches;
  const double d = window.measured ? window.measured->d_percent.value_or(0) : 0;
  const std::string sentence = fmt::format(
      "{}: in step {} the run took other tokens than the data's order gives (D = {}). The window "
      "says nothing of FP8, and no replay will get the run's bits there: look at how the data is "
      "loaded.",
      window_name(window), batches.front().step, percent(d));
  if (core.s.trust.other_tokens) return core.explain(sentence);
  RecordDecision& decision = core.record("verdict", sentence,
                                         {{"window", window.id},
                                          {"first_other_batch_step", batches.front().step},
                                          {"batches", batches_evidence(batches)},
                                          {"d_percent", number(d)}});
  decision.verdict = "data_mismatch";
  decision.window = window.id;
  core.s.trust.other_tokens = true;
}

void record_claims(Core& core, const WindowState& window, bool two_agree) {
  const Witness& first = window.witnesses.front();
  if (window.kind != "shadow") return;
  if (window.outcome == "failed" && first.suffers.value_or(false))
    note_diverged(core, window, two_agree);
  if (window.outcome == "skipped" && !first.other_batches.empty())
    record_other_tokens(core, window);
}

}  // namespace gnomon::decide
