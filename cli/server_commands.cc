#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>

#include "base/progress.h"
#include "base/wall_clock.h"
#include "cli/commands.h"
#include "cli/device_line.h"
#include "cli/json_output.h"
#include "cli/ledger_view.h"
#include "cli/printing.h"
#include "cli/server.h"
#include "cli/summary.h"
#include "cli/table.h"
#include "protocol/json_text.h"
#include "protocol/records.h"
#include "storage/view_queries.h"

namespace gnomon::cli {
namespace {

using Row = boost::json::object;

struct ListOptions : ServerOptions {
  std::string ledger;  // in place of gnomond
};

std::string integer_text(const Row& row, const char* key) {
  double value = number_of(row, key);
  return std::isfinite(value) ? std::to_string(integer_of(row, key)) : "-";
}

std::string percent_text(const Row& row, const char* key) {
  double value = number_of(row, key);
  if (std::isinf(value)) return "not finite";
  return std::isfinite(value) ? format_percent(value) : "-";
}

std::string time_text(const Row& row, const char* key) {
  double value = number_of(row, key);
  return std::isfinite(value) ? format_time(value) : "-";
}

std::string text_or_dash(const Row& row, const char* key) {
  std::string text = text_of(row, key);
  return text.empty() ? "-" : text;
}

// A dash where the daemon is older than this command.
std::string verdict_text(const Row& row) {
  std::string verdict = text_or_dash(row, "verdict");
  std::ranges::replace(verdict, '_', ' ');
  return verdict;
}

// What was decided and, of a verdict on hardware, what the GPU had counted.
std::string sentence_of(const Row& decision) {
  const std::string errors = text_of(decision, "device_errors");
  const std::string sentence = text_of(decision, "sentence");
  return errors.empty() ? sentence : fmt::format("{} [Beside it: {}.]", sentence, errors);
}

struct Column {
  std::string name;
  bool number;
  Listed listed;
};

// What lists show of a row.
template <typename R>
std::vector<Column> columns_of() {
  std::vector<Column> columns;
  R::describe([&](const char* name, auto member, const Member& rules) {
    using T = std::remove_cvref_t<std::invoke_result_t<decltype(member), R&>>;
    if (*rules.listed.heading == '\0') return;
    const bool number =
        std::is_convertible_v<T, double> || std::is_same_v<T, std::optional<double>>;
    columns.push_back({name, number && rules.listed.as != Listed::As::kTime, rules.listed});
  });
  return columns;
}

std::string cell(const Row& row, const Column& column) {
  const char* key = column.name.c_str();
  switch (column.listed.as) {
    case Listed::As::kPercent:
      return percent_text(row, key);
    case Listed::As::kTime:
      return time_text(row, key);
    case Listed::As::kNats: {
      const double value = number_of(row, key);
      return std::isfinite(value) ? fmt::format("{:+.5f}", value) : "-";
    }
    case Listed::As::kPlain:
      break;
  }
  return column.number ? integer_text(row, key) : text_or_dash(row, key);
}

template <typename R>
void print_rows(const boost::json::array& rows, const char* when_empty) {
  const std::vector<Column> columns = columns_of<R>();
  std::vector<std::string> headings;
  for (const Column& column : columns)
    headings.push_back(fmt::format("{}{}", column.number ? ">" : "", column.listed.heading));
  Table table(headings);
  for (const boost::json::value& row : rows) {
    std::vector<std::string> cells;
    for (const Column& column : columns) cells.push_back(cell(row.as_object(), column));
    table.add(std::move(cells));
  }
  fmt::print("{}", table.empty() ? std::string(when_empty) + "\n" : table.text());
}

// Rows from gnomond or from a ledger's file.
class Source {
 public:
  explicit Source(const ListOptions& options) : run_(options.run) {
    if (!options.ledger.empty()) {
      ledger_.emplace(options.ledger);
      return;
    }
    ClientOptions access = options.access;
    access.url = url_or_environment(access.url, ServerOptions().access.url);
    server_.emplace(access);
  }
  boost::json::array runs() {
    if (server_) return server_->get_list("/v1/runs");
    boost::json::array rows;
    for (const RunRow& run : ledger_->runs()) rows.push_back(summary(run.id));
    return rows;
  }
  Row run() {
    if (server_) return server_->get(route()).as_object();
    return summary(in_ledger());
  }
  // `name` is the end of the route.
  boost::json::array list(const char* name, const char* sql) {
    if (server_) return server_->get_list(route() + "/" + name);
    return parse_json_exactly(ledger_->rows(sql, in_ledger())).as_array();
  }

 private:
  // The run's name is looked up once.
  const std::string& route() {
    if (route_.empty()) route_ = "/v1/runs/" + server_->resolve_run(run_);
    return route_;
  }
  int64_t in_ledger() {
    if (id_ == 0) id_ = ledger_->run_named(run_).id;
    return id_;
  }
  Row summary(int64_t run) {
    Row row = parse_json_exactly(ledger_->summary(run)).as_array().at(0).as_object();
    if (const auto verdict = verdict_on_record(*ledger_, fmt::format("run-{}", run))) {
      row["verdict"] = decide::verdict_name(verdict->kind);
      row["verdict_sentence"] = verdict->sentence;
      row["verdict_since"] = verdict->since;
    }
    return row;
  }

  std::string run_, route_;
  int64_t id_ = 0;
  std::optional<LedgerView> ledger_;
  std::optional<Server> server_;
};

template <typename R>
void print_list(const ListOptions& options, const char* list, const char* sql,
                const char* when_empty, void (*prepare)(Row&) = nullptr) {
  boost::json::array rows = Source(options).list(list, sql);
  if (options.json) {
    fmt::print("{}", pretty_json(rows));
    return;
  }
  for (boost::json::value& row : rows)
    if (prepare != nullptr) prepare(row.as_object());
  print_rows<R>(rows, when_empty);
}

void print_runs(const ListOptions& options) {
  const boost::json::array rows = Source(options).runs();
  if (options.json) {
    fmt::print("{}", pretty_json(rows));
    return;
  }
  Table table({"run", "name", "job", "state", "verdict", "last report", "registered"});
  for (const boost::json::value& each : rows) {
    const Row& row = each.as_object();
    table.add({run_id_of(row), text_of(row, "name"), text_of(row, "job_id"), text_of(row, "state"),
               verdict_text(row), time_text(row, "reported_at"), time_text(row, "registered_at")});
  }
  fmt::print("{}", table.empty() ? "no run has registered yet\n" : table.text());
}

void print_windows(const ListOptions& options) {
  print_list<WindowRow>(options, "windows", views::kWindows, "no window has been opened yet");
}

void print_decisions(const ListOptions& options) {
  print_list<ShownDecision>(options, "decisions", views::kDecisions,
                            "no decision has been made yet",
                            [](Row& row) { row["sentence"] = sentence_of(row); });
}

void print_directives(const ListOptions& options) {
  // A pause has no plan, and a plan no step.
  print_list<DirectiveRow>(options, "directives", views::kDirectives,
                           "no directive has been issued yet", [](Row& row) {
                             if (integer_of(row, "plan_version") == 0)
                               row["plan_version"] = nullptr;
                             if (text_of(row, "kind") != "rollback") row["to_step"] = nullptr;
                           });
}

void print_notices(const ListOptions& options) {
  print_list<NoticeRow>(options, "notices", views::kNotices, "the trainer has sent no notice");
}

const Row* measured_window(const boost::json::array& windows, const Row& run) {
  for (const boost::json::value& window : windows) {
    if (integer_of(window.as_object(), "window") == integer_of(run, "measured_window"))
      return &window.as_object();
  }
  return nullptr;
}

// The newest pause or resume of a live run that was neither rejected nor expired; and the newest
// pause that the trainer has applied and that no step, nor an applied resume, has followed.
struct Standing {
  const Row* newest = nullptr;
  const Row* pause = nullptr;
};

Standing standing_pause(const Row& run, const boost::json::array& directives) {
  Standing found;
  if (text_of(run, "state") != "live") return found;
  for (auto row = directives.rbegin(); row != directives.rend(); ++row) {
    const Row& directive = row->as_object();
    const std::string kind = text_of(directive, "kind"), state = text_of(directive, "state");
    if ((kind != "pause" && kind != "resume") || state == "rejected" || state == "expired")
      continue;
    if (found.newest == nullptr) found.newest = &directive;
    if (state != "applied") continue;
    const bool over = integer_of(run, "step") > integer_of(directive, "applied_step");
    if (kind == "pause" && !over) found.pause = &directive;
    break;
  }
  return found;
}

void print_pause(const Row& run, const boost::json::array& directives) {
  const Standing standing = standing_pause(run, directives);
  if (standing.pause != nullptr) {
    print_line("paused at step {}: {}\n", integer_of(*standing.pause, "applied_step"),
               text_or_dash(*standing.pause, "reason"));
  }
  const bool open = standing.newest != nullptr && text_of(*standing.newest, "state") != "applied";
  if (open && text_of(*standing.newest, "kind") == "resume") {
    print_line("a resume is on its way to the trainer: directive {}, {}\n",
               integer_of(*standing.newest, "number"), text_of(*standing.newest, "state"));
    return;
  }
  if (open) {
    print_line("a pause is on its way to the trainer: {}\n",
               text_or_dash(*standing.newest, "reason"));
  }
  if (open || standing.pause != nullptr || text_or_dash(run, "phase") == "holding") {
    print_line("to go on: gnomon override {}/{} resume --reason \"...\"\n", text_of(run, "name"),
               text_of(run, "job_id"));
  }
}

// Prints the newest override of each kind that holds for a time, unless it is over.
void print_standing_overrides(const boost::json::array& overrides, double now) {
  for (const char* kind : {"set_plan", "silence", "mode"}) {
    for (auto row = overrides.rbegin(); row != overrides.rend(); ++row) {
      const Row& one = row->as_object();
      if (text_of(one, "kind") != kind) continue;
      if (number_of(one, "expires_at") > now) {
        std::string mode = text_of(one, "mode");
        print_line("override: {}{} until {} by {}: {}\n", kind, mode.empty() ? "" : " " + mode,
                   time_text(one, "expires_at"), text_of(one, "owner"), text_of(one, "reason"));
      }
      break;
    }
  }
}

void print_newest_notices(const boost::json::array& notices, const std::string& run) {
  constexpr size_t kShown = 3;
  if (notices.empty()) return;
  print_line("notices: {}\n", notices.size());
  for (size_t i = notices.size() - std::min(notices.size(), kShown); i < notices.size(); ++i) {
    const Row& row = notices[i].as_object();
    print_line("  {} at step {}: {} ({})\n", time_text(row, "noticed_at"), integer_of(row, "step"),
               text_of(row, "text"), text_of(row, "kind"));
  }
  if (notices.size() > kShown) print_line("  all of them: gnomon notices {}\n", run);
}

struct Status {
  Row run;
  boost::json::array windows, decisions, directives, overrides, notices;
};

void print_status_in_words(const Status& status) {
  const Row& run = status.run;
  std::string stands = text_of(run, "state");
  // A ledger's file has neither.
  if (!text_of(run, "phase").empty()) stands += ", " + text_of(run, "phase");
  if (!text_of(run, "mode").empty()) stands += ", mode " + text_of(run, "mode");
  print_line("{}/{} ({}): {}, registered {}\n", text_of(run, "name"), text_of(run, "job_id"),
             run_id_of(run), stands, time_text(run, "registered_at"));
  if (!text_of(run, "verdict").empty()) {
    const bool dated = std::isfinite(number_of(run, "verdict_since"));
    print_line("{}{}: {}\n", verdict_text(run),
               dated ? " since " + time_text(run, "verdict_since") : std::string(),
               text_of(run, "verdict_sentence"));
  }
  if (std::isfinite(number_of(run, "step"))) {
    const double loss = number_of(run, "loss"), norm = number_of(run, "grad_norm");
    print_line("step {} of attempt {}: loss {}{}, plan version {}\n", integer_of(run, "step"),
               integer_of(run, "attempt"),
               std::isfinite(loss) ? fmt::format("{:.4f}", loss) : "not finite",
               std::isnan(norm) ? "" : fmt::format(", gradient norm {:.3f}", norm),
               integer_of(run, "plan_version"));
    print_line("the last report of a step: {}, {} ago\n", time_text(run, "reported_at"),
               format_duration(std::max(0.0, now_seconds() - number_of(run, "reported_at"))));
  }
  if (const boost::json::value* device = run.if_contains("device_health");
      device != nullptr && device->is_object()) {
    print_line("{}\n", device_line(device->get_object(), now_seconds()));
  }
  print_pause(run, status.directives);
  print_standing_overrides(status.overrides, now_seconds());
  if (const Row* window = measured_window(status.windows, run)) {
    print_line("window {} ({} from step {}): gap {} against a tolerance of {}, {}\n",
               integer_of(*window, "window"), text_of(*window, "kind"),
               integer_of(*window, "start_step"), percent_text(*window, "d_percent"),
               percent_text(*window, "tolerance_percent"), text_of(*window, "state"));
  }
  if (std::isfinite(number_of(run, "verified_step"))) {
    print_line("the last verified checkpoint: step {}\n", integer_of(run, "verified_step"));
  }
  if (std::isfinite(number_of(run, "verification_lag_steps"))) {
    print_line("steps since the last verified one: {}\n",
               integer_of(run, "verification_lag_steps"));
  }
  print_line("decisions: {}\n", status.decisions.size());
  if (!status.decisions.empty()) {
    print_line("the newest: {}\n", sentence_of(status.decisions.back().as_object()));
  }
  print_newest_notices(status.notices, run_id_of(run));
}

boost::json::value to_json(Status status) {
  const Row* window = measured_window(status.windows, status.run);
  boost::json::value newest_window = window ? boost::json::value(*window) : nullptr;
  return {{"run", std::move(status.run)},
          {"newest_measured_window", std::move(newest_window)},
          {"newest_decision", status.decisions.empty() ? nullptr : status.decisions.back()},
          {"overrides", std::move(status.overrides)},
          {"notices", std::move(status.notices)}};
}

void print_status(const ListOptions& options) {
  Source source(options);
  Status status;
  status.run = source.run();
  status.windows = source.list("windows", views::kWindows);
  status.decisions = source.list("decisions", views::kDecisions);
  status.directives = source.list("directives", views::kDirectives);
  status.overrides = source.list("overrides", views::kOverrides);
  status.notices = source.list("notices", views::kNotices);
  if (options.json) {
    fmt::print("{}", pretty_json(to_json(std::move(status))));
  } else {
    print_status_in_words(status);
  }
}

// What was asked of gnomond can be read from its ledger, too.
void print_or_advise(const ListOptions& options, void (*print)(const ListOptions&)) {
  try {
    print(options);
  } catch (const ConnectionError& error) {
    throw ConnectionError(
        fmt::format("{}. Without a daemon, --ledger FILE reads its ledger", error.what()));
  }
}

Command* add_listing(Command& app, const std::shared_ptr<ListOptions>& options, const char* name,
                     const char* what, const char* example, bool of_run,
                     void (*print)(const ListOptions&), const char* columns = nullptr) {
  Command* command = app.add_subcommand(name, what);
  if (of_run) {
    command->add_option("RUN", options->run, "run-1, a name (its newest job) or name/job")
        ->required();
  }
  CommandOption* file =
      command->add_option("--ledger", options->ledger, "ledger.sqlite, in place of asking gnomond");
  add_url_option_beside(*file, *command, options->access, "Where gnomond listens");
  command->add_flag("--json", options->json, "Print JSON: rows with the ledger's column names");
  command->footer((columns != nullptr ? fmt::format("{}\n\n", columns) : std::string()) +
                  "Example:\n  " + example);
  command->callback([options, print] { print_or_advise(*options, print); });
  return command;
}

}  // namespace

void add_server_commands(Command& app, Context&) {
  auto options = std::make_shared<ListOptions>();
  options->access.url.clear();  // said on the command line, else the environment's
  Command* runs = add_listing(app, options, "runs", "All runs that gnomond knows", "gnomon runs",
                              false, print_runs);
  add_runs_end_command(*runs);
  add_runs_delete_command(*runs);
  runs->callback([runs, options] {
    if (runs->chosen_subcommand().empty()) print_or_advise(*options, print_runs);
  });
  add_listing(app, options, "status", "Where a run stands", "gnomon status demo", true,
              print_status);
  add_listing(
      app, options, "windows", "A run's windows: each gap between FP8 and its BF16 shadow",
      "gnomon windows demo/1", true, print_windows,
      "alarm: over a limit; the first one opens a case. skipped, failed: not judged; why says the "
      "reason, and\nthere may be a gap all the same.");
  add_listing(app, options, "decisions", "Decisions about a run, with reasons",
              "gnomon decisions demo --ledger ledger.sqlite --json", true, print_decisions,
              "step is the newest step of the run then. It falls after a rollback.");
  add_listing(app, options, "directives", "Orders to the trainer, and how far they got",
              "gnomon directives run-1 --url http://127.0.0.1:7717", true, print_directives);
  add_listing(app, options, "notices",
              "The trainer's notices to people: failed checkpoints,"
              " dropped reports, plans changed without the controller, memory errors of its GPU",
              "gnomon notices demo", true, print_notices);
}

}  // namespace gnomon::cli
