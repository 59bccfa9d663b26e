#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/printing.h"
#include "cli/server.h"
#include "cli/table.h"

namespace gnomon::cli {
namespace {

struct ReadyOptions {
  ServerOptions server;
  bool live = false;
};

// A probe wants an answer, not patience.
constexpr std::chrono::seconds kPatience{5};

void run_ready(const ReadyOptions& options, Context& context) {
  HttpClient client = connect(options.server.access);
  const char* target = options.live ? "/livez" : "/readyz";
  const HttpResponse answer = client.request("GET", target, {}, kPatience);
  if (answer.status == 401 || answer.status == 403) {
    throw Error(
        fmt::format("{} answers {}: it wants a token (--token-file, GNOMON_TOKEN_FILE or "
                    "GNOMON_TOKEN)",
                    options.server.access.url, answer.status));
  }
  if (answer.status != 200) context.status = kExitFailure;
  const boost::json::object body =
      answer_of_gnomond(options.server.access.url, target, answer, options.live ? "live" : "ready");
  if (options.server.json) {
    fmt::print("{}", pretty_json(body));
    return;
  }
  if (const boost::json::value* checks = body.if_contains("checks")) {
    Table table({"check", "ok", "error"});
    for (const boost::json::value& check : checks->as_array()) {
      const boost::json::object& row = check.as_object();
      table.add(
          {text_of(row, "name"), row.at("ok").as_bool() ? "yes" : "no", text_of(row, "error")});
    }
    fmt::print("{}", table.text());
  }
  if (body.contains("title")) {
    print_line(stderr, "gnomon: {}: {}\n", text_of(body, "title"), text_of(body, "detail"));
  }
  const char* word = options.live ? "live" : "ready";
  fmt::print("{}{}\n", context.status == kExitFailure ? "not " : "", word);
}

}  // namespace

void add_ready_command(Command& app, Context& context) {
  auto options = std::make_shared<ReadyOptions>();
  Command* command =
      app.add_subcommand("ready", "Checks that gnomond can work now, one line each; for probes");
  add_url_option(*command, options->server);
  command->add_flag("--live", options->live, "Only whether it answers at all");
  command->add_flag("--json", options->server.json, "Print JSON");
  command->footer(
      "Examples:\n  gnomon ready\n  gnomon ready --live --url http://127.0.0.1:7717\n\n"
      "Exit status: 0 ready; 1 not ready, or no gnomond answers within five seconds.");
  command->callback([options, &context] { run_ready(*options, context); });
}

}  // namespace gnomon::cli
