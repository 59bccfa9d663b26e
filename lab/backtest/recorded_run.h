// A recorded run as something that can be asked: its events, in order, and the answers that its
// verifiers gave, each under the question itself and not under a number. Another policy numbers
// its windows and replays otherwise, but a replay from one checkpoint over the same steps in the
// same arm gives the same answer whoever asks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/ledger_view.h"
#include "controller/decide/events.h"

namespace gnomon::cli {

struct RecordedEvent {
  int64_t seq = 0;
  double time = 0;
  decide::Event event;
};

struct RecordedReplay {
  int64_t replay = 0;
  std::string question;  // question_of()
  std::string purpose;
  bool endpoints = false;  // the losses at both ends were evaluated
  std::optional<int64_t>
      answered_at;  // index of the event with its answer; empty: moot, or not yet
};

struct RecordedDirective {
  int64_t number = 0;
  std::string kind;
  std::string order;         // order_of()
  int64_t plan_version = 0;  // that it sets; 0 = none
  int64_t issued_at = 0;     // index of the newest event when it was issued
  int64_t issued_step = 0;
  std::optional<int64_t> answered_at;  // index of the newest event with its answer
  int64_t applied_step = 0;            // newest step then
  std::optional<int64_t> attempt_at;   // of a rollback: index of the attempt that it began
};

struct RecordedRun {
  std::vector<RecordedEvent> events;
  std::vector<RecordedReplay> replays;        // by number
  std::vector<RecordedDirective> directives;  // by number
  double seconds_per_replayed_step = 0;       // mean, with what loading and evaluating took
};

// What a replay is asked: its window's place and the plan, without any number.
struct WindowPlace {
  int64_t attempt = 1;
  int64_t start_step = 0;
  int64_t steps = 0;
};
std::string question_of(const WindowPlace& window, const std::string& arm, const std::string& plan,
                        int64_t nudge, bool elsewhere, bool on_trainer);
// What a directive orders, without its numbers.
std::string order_of(const std::string& kind, int64_t to_step, const std::string& plan);

// Throws FormatError when an event cannot be read back.
RecordedRun recorded_run(const LedgerView& ledger, int64_t run, const std::string& ledger_file);

}  // namespace gnomon::cli
