// What is kept of one rehearsal (rehearsal.h): the decision core's events, what it measured and
// what it decided, small enough for hundreds of them to lie in a repository. Events are read back
// exactly, so that decisions, or the detector alone, can be tried again without training anything.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "controller/decide/events.h"

namespace gnomon::rehearsal {

// `at`: the run's clock, in seconds of an FP8 step.
struct TracedEvent {
  double at = 0;
  decide::Event event;
};

struct TracedDecision {
  double at = 0;
  decide::RecordDecision decision;
};

// A window and what came of it. Losses in nats; D may be infinite.
struct TracedWindow {
  int64_t window = 0;
  std::string kind;              // shadow, incident, probe, long
  std::string outcome = "open";  // as the run ended: open, quiet, alarm, skipped, failed
  int64_t attempt = 1;
  int64_t start_step = 0;
  int64_t steps = 0;
  int64_t plan_version = 0;
  std::optional<double> gap;
  std::optional<double> offset;
  std::optional<double> d_percent;
  std::optional<double> gap_error;
  std::string rule;
};

// How the run ended.
struct TracedResult {
  std::string outcome;        // completed, stopped, held (a directive had paused it)
  int64_t step = 0;           // of the last weights
  int64_t steps_trained = 0;  // those that a rollback undid too
  int64_t attempts = 1;
  double heldout_bf16 = 0;      // loss of the last weights in BF16, nats; may be not finite
  double seconds = 0;           // the clock at the end
  double training_seconds = 0;  // of the steps
  double replay_seconds = 0;
  int64_t replays = 0;
};

struct Trace {
  std::string setup;  // JSON object: what was run (rehearsal.h)
  std::vector<TracedEvent> events;
  std::vector<TracedWindow> windows;  // in the order they were opened
  std::vector<TracedDecision> decisions;
  TracedResult result;

  // JSON lines. Steps with nothing between them share a line, and a replay's line leaves out the
  // run's losses, which the steps have.
  std::string to_text() const;
  // Throws FormatError naming `file` and the line that is wrong.
  static Trace from_text(const std::string& text, const std::string& file);

  // The file is whole or not there.
  void write(const std::filesystem::path& file) const;
  static Trace read(const std::filesystem::path& file);
};

// Losses and gradient norms of steps enter the decision core and the trace with seven significant
// digits, which is all that a float has.
double as_traced(double value);

}  // namespace gnomon::rehearsal
