#include <fmt/format.h>

#include <memory>

#include "base/errors.h"
#include "base/wall_clock.h"
#include "cli/commands.h"
#include "cli/printing.h"
#include "controller/daemon/daemon_config.h"
#include "controller/notify/body.h"
#include "controller/notify/retry.h"
#include "controller/notify/sender.h"

namespace gnomon::cli {
namespace {

struct NotifyOptions {
  std::string config;
  std::string receiver;
};

notify::Answer send_test(const notify::Receiver& receiver, const std::string& external_url) {
  const double time = now_seconds();
  const notify::Alert alert = notify::test_alert(time);
  const std::string body = notify::webhook_body(alert, receiver.name, "test", external_url);
  notify::Sender sender;
  sender.post(receiver, body, "test", time);
  std::vector<notify::Answer> answers;
  while (answers.empty()) answers = sender.wait(std::chrono::seconds(1));
  return answers.front();
}

void run_test(const NotifyOptions& options, Context& context) {
  const notify::NotifierSettings settings = read_daemon_config(options.config).notifications;
  bool found = false;
  std::string names;
  for (const notify::Receiver& receiver : settings.receivers) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", receiver.name);
    if (!options.receiver.empty() && options.receiver != receiver.name) continue;
    found = true;
    const notify::Answer answer = send_test(receiver, settings.external_url);
    const bool taken = notify::fate_of(answer.status) == notify::Fate::kDelivered;
    if (!taken) context.status = kExitFailure;
    print_line("{}: {} ({})\n", receiver.name, taken ? "taken" : "not taken", answer.words());
  }
  if (found) return;
  if (options.receiver.empty()) {
    throw ConfigError(options.config, 0, "notify", "",
                      "at least one [[notify]] with a name and url");
  }
  throw ConfigError("", 0, "--receiver", options.receiver,
                    names.empty() ? "a [[notify]] of that name in the file" : "one of " + names);
}

}  // namespace

void add_notify_commands(Command& app, Context& context) {
  Command* group = app.add_subcommand("notify", "Notifications of gnomond");
  group->require_subcommand(1);
  auto options = std::make_shared<NotifyOptions>();
  Command* test = group->add_subcommand(
      "test", "Sends one test message to receivers of a configuration and prints their answers");
  test->add_option("--config", options->config, "gnomond's TOML file")->required();
  test->add_option("--receiver", options->receiver, "Only this one; all when absent");
  test->footer(
      "Example:\n  gnomon notify test --config /etc/gnomon/gnomond.toml --receiver oncall\n\n"
      "It is sent from here, at once and once; no daemon and no ledger is needed. Who may read the "
      "secrets may do it.\nExit status: 0 all took it; 1 one did not; 2 bad configuration.");
  test->callback([options, &context] { run_test(*options, context); });
}

}  // namespace gnomon::cli
