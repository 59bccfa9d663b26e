// `gnomon watch`: prints a live run in plain lines, by asking gnomond for what is new once in a
// while.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "base/printable.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "cli/server.h"
#include "cli/table.h"

namespace gnomon::cli {
namespace {

using Row = boost::json::object;
using Clock = std::chrono::steady_clock;

constexpr const char* kPlain = "";
constexpr const char* kRed = "\033[31m";
constexpr const char* kGreen = "\033[32m";
constexpr const char* kYellow = "\033[33m";
constexpr const char* kBold = "\033[1m";

struct WatchOptions {
  ServerOptions server;
  double interval_seconds = 0.5;
  double wait_seconds = 0;
  double patience_seconds = 60;
  double quiet_seconds = 60;
};

class Watcher {
 public:
  explicit Watcher(const WatchOptions& options)
      : options_(options), server_(options.server.access), color_(wants_color(stdout)) {}

  // Returns when the run has ended.
  void follow() {
    wait_for_run();
    while (!poll()) std::this_thread::sleep_for(interval());
  }

 private:
  std::chrono::duration<double> interval() const {
    return std::chrono::duration<double>(options_.interval_seconds);
  }

  // Before the trainer has registered there is nothing to watch yet.
  void wait_for_run() {
    Clock::time_point give_up = Clock::now() + seconds(options_.wait_seconds);
    while (true) {
      try {
        run_ = server_.resolve_run(options_.server.run);
        break;
      } catch (const Error&) {
        if (Clock::now() >= give_up) throw;
      }
      std::this_thread::sleep_for(interval());
    }
    base_ = "/v1/runs/" + run_;
  }

  static Clock::duration seconds(double count) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(count));
  }

  // One look; true when the run has ended. A controller that is away is said once and waited for.
  bool poll() {
    try {
      bool ended = look();
      if (away_since_) print_line(kGreen, "the controller is back");
      away_since_.reset();
      return ended;
    } catch (const Error& error) {
      const auto* answer = dynamic_cast<const ApiError*>(&error);
      const bool busy = answer != nullptr && !answer->refuses_token() && may_pass(answer->status());
      if (!busy && dynamic_cast<const ConnectionError*>(&error) == nullptr) throw;
      if (!away_since_) {
        away_since_ = Clock::now();
        print_line(
            kYellow,
            "the controller does not answer; the trainer does as its controller.on_loss says");
      } else if (Clock::now() - *away_since_ > seconds(options_.patience_seconds)) {
        throw;
      }
      return false;
    }
  }

  bool look() {
    Row run = server_.get(base_).as_object();
    bool ended = text_of(run, "state") != "live";
    print_windows(server_.get_list(base_ + "/windows"));
    print_decisions(server_.get_list(base_ + "/decisions"));
    print_directives();
    show_verdict(run);  // after what has led to it
    show_progress(run);
    if (ended) {
      if (progress_) progress_->finish();
      progress_.reset();
      double loss = number_of(run, "final_loss");
      print_line(
          kBold,
          fmt::format(
              "the run is {} at step {}{}", text_of(run, "state"), integer_of(run, "finished_step"),
              std::isfinite(loss) ? fmt::format("; held-out loss in BF16 {:.4f}", loss) : ""));
    }
    return ended;
  }

  // Shows a verdict when it is another one, or the same one anew.
  void show_verdict(const Row& run) {
    const std::string verdict = text_of(run, "verdict");
    const double since = number_of(run, "verdict_since");
    if (verdict.empty() || verdict == "ended" || (verdict == verdict_ && !(since > since_))) return;
    verdict_ = verdict;
    since_ = since;
    std::string name = verdict;
    std::ranges::replace(name, '_', ' ');
    const bool bad = verdict == "harmful" || verdict == "silent" || verdict == "unverified" ||
                     verdict == "unstable";
    print_line(verdict == "good" ? kGreen
               : bad             ? kRed
                                 : kYellow,
               fmt::format("verdict {}: {}", name, text_of(run, "verdict_sentence")));
  }

  void print_windows(const boost::json::array& windows) {
    for (const boost::json::value& value : windows) {
      const Row& row = value.as_object();
      std::string state = text_of(row, "state");
      std::string& known = window_states_[integer_of(row, "window")];
      if (state == known) continue;
      known = state;
      if (state == "open") continue;
      std::string what = fmt::format("window {} ({}, steps {} to {})", integer_of(row, "window"),
                                     text_of(row, "kind"), integer_of(row, "start_step") + 1,
                                     integer_of(row, "start_step") + integer_of(row, "steps"));
      double gap = number_of(row, "d_percent");
      if (std::isfinite(gap)) {
        what += fmt::format(": gap {}", format_percent(gap));
        const double evidence = number_of(row, "statistic");
        const std::string rule = text_of(row, "rule");
        if (std::isfinite(evidence) && (rule.empty() || rule == "evidence")) {
          what += fmt::format(", evidence {} (an alarm needs {})", plain_number(evidence),
                              plain_number(number_of(row, "threshold")));
        }
      }
      const bool probe = text_of(row, "kind") == "probe";
      what += probe && state == "alarm" ? ", failed" : ", " + state;
      const std::string why = text_of(row, "why");
      if (!why.empty()) what += ": " + why;
      print_line(state == "alarm" && !probe ? kRed : kPlain, what);
    }
  }

  void print_decisions(const boost::json::array& decisions) {
    for (const boost::json::value& value : decisions) {
      const Row& row = value.as_object();
      int64_t number = integer_of(row, "decision");
      if (number <= last_decision_) continue;
      last_decision_ = number;
      std::string kind = text_of(row, "kind");
      bool good = kind == "recovered" || kind == "return" || kind == "accept";
      const char* color = kind == "alarm" ? kRed : good ? kGreen : kYellow;
      print_line(color, kind + ": " + text_of(row, "sentence"));
    }
  }

  void print_directives() {
    for (const boost::json::value& value : server_.get_list(base_ + "/directives")) {
      const Row& row = value.as_object();
      std::string state = text_of(row, "state");
      std::string& known = directive_states_[integer_of(row, "number")];
      if (state == known) continue;
      known = state;
      const bool failed = state == "rejected" || state == "expired";
      if (state == "applied" || state == "pending" || failed) {
        std::string to = text_of(row, "kind") == "rollback"
                             ? fmt::format(" to step {}", integer_of(row, "to_step"))
                             : "";
        const std::string why = text_of(row, "reject_reason");
        print_line(failed ? kRed : kPlain,
                   fmt::format("directive {} ({}{}): {}{}", integer_of(row, "number"),
                               text_of(row, "kind"), to, state == "pending" ? "issued" : state,
                               failed && !why.empty() ? ": " + why : ""));
      }
    }
  }

  void show_progress(const Row& run) {
    int64_t attempt = integer_of(run, "attempt");
    int64_t step = integer_of(run, "step");
    if (attempt > 1 && attempt != attempt_) {
      print_line(kYellow, fmt::format("attempt {} begins anew behind step {}", attempt,
                                      base_step(run, attempt)));
    }
    const bool moved = attempt != attempt_ || step != step_;
    attempt_ = attempt;
    step_ = step;
    print_quiet(moved, text_of(run, "state") == "live", text_of(run, "phase"));
    if (step == 0) return;
    if (!progress_) {
      const boost::json::value* registration = run.if_contains("registration");
      bool known = registration != nullptr && registration->is_object();
      progress_.emplace("train", known ? integer_of(registration->get_object(), "total_steps") : 0,
                        stdout);
    }
    progress_->update(step, fmt::format("loss {:.3f}  {}", number_of(run, "loss"),
                                        printable(text_of(run, "phase"))));
  }

  // A live run whose steps stay away is said once, and once that they come again.
  void print_quiet(bool moved, bool live, const std::string& phase) {
    if (moved) {
      if (quiet_printed_) print_line(kGreen, fmt::format("steps come again: step {}", step_));
      quiet_printed_ = false;
      moved_at_ = Clock::now();
    } else if (live && !quiet_printed_ &&
               Clock::now() - moved_at_ > seconds(options_.quiet_seconds)) {
      quiet_printed_ = true;
      print_line(
          kYellow,
          fmt::format("no step has come for {:.4g} s after step {} (the controller's phase: {}); "
                      "`gnomon status {}` says whether the run is paused",
                      options_.quiet_seconds, step_, phase, run_));
    }
  }

  static int64_t base_step(const Row& run, int64_t attempt) {
    const boost::json::value* attempts = run.if_contains("attempts");
    if (attempts == nullptr || !attempts->is_array()) return 0;
    for (const boost::json::value& value : attempts->get_array()) {
      const Row& row = value.as_object();
      if (integer_of(row, "attempt") == attempt) return integer_of(row, "base_step");
    }
    return 0;
  }

  void print_line(const char* color, const std::string& text) {
    bool painted = color_ && *color != '\0';
    const std::string words = printable(text);
    std::string line = painted ? color + words + "\033[0m" : words;
    if (progress_) {
      progress_->message(line);
    } else {
      fmt::print("{}\n", line);
      std::fflush(stdout);
    }
  }

  WatchOptions options_;
  Server server_;
  bool color_;
  std::string run_;
  std::string base_;
  std::map<int64_t, std::string> window_states_;
  std::map<int64_t, std::string> directive_states_;
  std::string verdict_;
  double since_ = 0;
  int64_t last_decision_ = 0;
  int64_t attempt_ = 0;
  int64_t step_ = 0;
  Clock::time_point moved_at_ = Clock::now();
  bool quiet_printed_ = false;
  std::optional<Progress> progress_;
  std::optional<Clock::time_point> away_since_;
};

}  // namespace

void add_watch_command(Command& app, Context&) {
  auto options = std::make_shared<WatchOptions>();
  Command* command = app.add_subcommand("watch", "Follows a live run in plain lines until it ends");
  command->add_option("RUN", options->server.run, "run-1, a name (its newest job) or name/job")
      ->required();
  add_url_option(*command, options->server);
  command->add_option("--interval", options->interval_seconds, "Seconds between two looks")
      ->check(in_range(0.05, 60.0))
      ->capture_default_str();
  command->add_option("--wait", options->wait_seconds, "Seconds to wait for the run to register")
      ->check(in_range(0.0, 86400.0))
      ->capture_default_str();
  command
      ->add_option("--patience", options->patience_seconds,
                   "Seconds to wait for a controller that has stopped answering")
      ->check(in_range(0.0, 86400.0))
      ->capture_default_str();
  command
      ->add_option("--quiet-after", options->quiet_seconds,
                   "Seconds without a step after which it is said that none comes")
      ->check(in_range(0.1, 86400.0))
      ->capture_default_str();
  command->footer("Example:\n  gnomon watch demo --wait 30");
  command->callback([options] { Watcher(*options).follow(); });
}

}  // namespace gnomon::cli
