// `gnomon override`: what an operator orders by hand, recorded with name and reason.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include "base/errors.h"
#include "base/named_file.h"
#include "cli/commands.h"
#include "cli/duration.h"
#include "cli/json_output.h"
#include "cli/printing.h"
#include "cli/server.h"
#include "cli/table.h"
#include "cli/user_name.h"
#include "protocol/json.h"
#include "protocol/precision_plan.h"

namespace gnomon::cli {
namespace {

enum class Argument { kNone, kPlanFile, kMode };

struct Kind {
  OverrideKind name;
  Argument argument;
  bool expires;
  const char* effect;  // completes "recorded: "
};

constexpr std::array<Kind, 7> kKinds = {{
    {"pause", Argument::kNone, false, "the trainer pauses at the end of its step"},
    {"resume", Argument::kNone, false, "the trainer goes on"},
    {"stop", Argument::kNone, false, "the trainer writes a checkpoint and ends"},
    {"checkpoint_now", Argument::kNone, false, "the trainer writes a checkpoint"},
    {"set_plan", Argument::kPlanFile, true, "the run trains under this plan"},
    {"silence", Argument::kNone, true, "windows are measured and no action follows"},
    {"mode", Argument::kMode, true, "the policy's mode is replaced"},
}};

struct OverrideOptions {
  ServerOptions server;
  std::string kind;
  std::string argument;  // PLAN.toml or MODE
  std::string duration;
  OverrideRequest request;
};

const Kind& kind_named(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  for (const Kind& kind : kKinds) {
    if (name == kind.name) return kind;
  }
  std::vector<std::string_view> names;
  names.reserve(kKinds.size());
  for (const Kind& kind : kKinds) names.emplace_back(kind.name);
  throw ConfigError("", 0, "KIND", name, fmt::format("one of {}", fmt::join(names, ", ")));
}

void set_argument(const Kind& kind, const std::string& argument, OverrideRequest& request) {
  switch (kind.argument) {
    case Argument::kNone:
      if (!argument.empty()) {
        throw ConfigError(
            "", 0, "PLAN_OR_MODE", argument,
            fmt::format("nothing after {}; only set_plan and mode take one more", kind.name));
      }
      return;
    case Argument::kPlanFile:
      if (argument.empty())
        throw ConfigError("", 0, "PLAN_OR_MODE", "", "a plan file for set_plan");
      PrecisionPlan::load(argument);  // a bad plan is refused with its file's name and line
      request.plan = read_named_file_or_pipe(argument);
      return;
    case Argument::kMode:
      request.mode = ModeOrNone::on_record(argument);
      if (argument.empty() || !request.mode.is_known()) {
        throw ConfigError("", 0, "PLAN_OR_MODE", argument, "observe, advise or enforce for mode");
      }
      return;
  }
}

void set_duration(const Kind& kind, const std::string& duration, OverrideRequest& request) {
  if (kind.expires) {
    if (duration.empty()) {
      throw ConfigError("", 0, "--for", "",
                        fmt::format("how long {} holds, for example --for 2h", kind.name));
    }
    request.expires_seconds = parse_duration("--for", duration);
  } else if (!duration.empty()) {
    throw ConfigError("", 0, "--for", duration,
                      fmt::format("no --for: {} is one order, it does not expire", kind.name));
  }
}

bool is_blank(const std::string& text) {
  return text.find_first_not_of(" \t\r\n") == std::string::npos;
}

// Everything that can be known to be wrong without asking the controller.
OverrideRequest request_of(const OverrideOptions& options, const Kind& kind) {
  OverrideRequest request = options.request;
  request.kind = kind.name;
  set_argument(kind, options.argument, request);
  set_duration(kind, options.duration, request);
  if (is_blank(request.owner)) {
    throw ConfigError("", 0, "--owner", request.owner, "who asks: your user name is not known");
  }
  if (is_blank(request.reason)) {
    throw ConfigError("", 0, "--reason", request.reason, "why, in words that help the next person");
  }
  return request;
}

void send_override(const OverrideOptions& options) {
  const Kind& kind = kind_named(options.kind);
  OverrideRequest request = request_of(options, kind);
  Server server(options.server.access);
  std::string run = server.resolve_run(options.server.run);
  std::string answer = server.post("/v1/runs/" + run + "/overrides", to_json(request));
  if (options.server.json) {
    fmt::print("{}", pretty_json(boost::json::parse(answer)));
    return;
  }
  auto accepted = from_answer<OverrideAccepted>(answer);
  print_line("{}: {} is recorded as decision {} by {}: {}\n", run, kind.name, accepted.decision,
             request.owner, kind.effect);
  if (accepted.expires_at > 0) {
    print_line("It ends at {}, in {}.\n", format_time(accepted.expires_at),
               duration_in_words(request.expires_seconds));
  }
  if (accepted.directive > 0) {
    print_line(
        "Directive {} carries it to the trainer: gnomon directives {} says how far it got.\n",
        accepted.directive, run);
  }
}

constexpr const char* kFooter = R"(Kinds:
  pause             the trainer waits at the end of its step, until resume
  resume            it goes on; also the way out of a hold
  stop              it writes a checkpoint and ends
  checkpoint_now    it writes a checkpoint and goes on
  set_plan PLAN     the run trains under this precision plan until --for is over
  silence           windows are measured and recorded, but no action follows, until --for is over
  mode MODE         observe, advise or enforce in place of the policy's mode until --for is over

The first four are one order each and take no --for. Each override stands in the decision log with
owner and reason (gnomon decisions RUN); a directive takes effect at a step boundary.

Examples:
  gnomon override demo pause --reason "moving the job to another rack"
  gnomon override demo resume --reason "moved"
  gnomon override demo silence --for 2h --reason "data mix changes tonight, gaps are expected"
  gnomon override demo set_plan bf16.toml --for 3d --owner mira --reason "release candidate"
  gnomon override demo mode observe --for 12h --reason "comparing two policies by hand"
  gnomon override demo checkpoint_now --reason "before the maintenance"
)";

}  // namespace

void add_override_command(Command& app, Context&) {
  auto options = std::make_shared<OverrideOptions>();
  Command* command = app.add_subcommand(
      "override", "Orders by hand: pause, resume, stop, a plan, a silence, another mode");
  command->add_option("RUN", options->server.run, "run-1, a name (its newest job) or name/job")
      ->required();
  command->add_option("KIND", options->kind, "What to do; see below")->required();
  command->add_option("PLAN_OR_MODE", options->argument,
                      "set_plan: a plan in TOML; mode: observe, advise or enforce");
  command->add_option("--reason", options->request.reason, "Why; for the decision log")->required();
  options->request.owner = user_name();
  command->add_option("--owner", options->request.owner, "Who asks; without it, your user name")
      ->capture_default_str();
  command->add_option("--for", options->duration,
                      "How long a set_plan, silence or mode holds: 90s, 15m, 2h, 3d");
  add_url_option(*command, options->server);
  command->add_flag("--json", options->server.json, "Print the answer as JSON");
  command->footer(kFooter);
  command->callback([options] { send_override(*options); });
}

}  // namespace gnomon::cli
