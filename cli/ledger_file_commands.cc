#include <fmt/format.h>

#include <chrono>
#include <memory>

#include "base/progress.h"
#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/ledger_state_commands.h"
#include "cli/printing.h"
#include "cli/server.h"
#include "protocol/json_text.h"
#include "storage/ledger_backup.h"

namespace gnomon::cli {
namespace {

struct FileOptions {
  std::string ledger;
  ClientOptions access{};  // without a URL: the file
  std::string out;
  std::string from;
  bool compact = false;
  bool force = false;
  bool json = false;
};

// The work's own progress line, which begins with the first page.
BackupOptions with_progress(const FileOptions& options) {
  auto line = std::make_shared<std::unique_ptr<Progress>>();
  BackupOptions backup;
  backup.compact = options.compact;
  backup.progress = [line](int64_t done, int64_t bytes) {
    constexpr int64_t kMiB = int64_t{1} << 20;
    const auto mebibytes = [](int64_t count) { return (count + kMiB - 1) / kMiB; };
    if (!*line) *line = std::make_unique<Progress>("MiB copied", mebibytes(bytes));
    const bool end = done == bytes;
    (*line)->update(mebibytes(done), end ? "checking every page of the copy" : "");
    if (end) line->reset();
  };
  return backup;
}

std::string report_json(const BackupReport& report) {
  boost::json::object json;
  json["name"] = report.file.string();
  json["bytes"] = report.bytes;
  json["seconds"] = report.seconds;
  json["audit_rows"] = report.audit.rows;
  json["audit_head"] = fmt::format("{}:{}", report.audit.last_id, report.audit.head);
  return pretty_json(json);
}

void print_report(const BackupReport& report, bool json) {
  if (json) {
    fmt::print("{}", report_json(report));
    return;
  }
  fmt::print("{}: {:.1f} MiB in {:.1f} s, every page checked; audit head {}:{}\n",
             report.file.string(), static_cast<double>(report.bytes) / (1 << 20), report.seconds,
             report.audit.last_id, report.audit.head);
}

// It answers when every page of the copy has been read, which takes minutes for a large ledger.
void backup_by_daemon(const FileOptions& options, const ClientOptions& access) {
  constexpr auto kLongest = std::chrono::hours(24);
  if (!options.out.empty()) {
    throw ConfigError("", 0, "--out", options.out,
                      "no name beside --url: gnomond writes into the folder that its configuration "
                      "names");
  }
  if (options.compact) {
    throw ConfigError("", 0, "--compact", "with --url",
                      "it beside --ledger; gnomond makes whole copies");
  }
  Server server(access);
  print_line(stderr,
             "gnomon: {} is asked for a backup; it answers when the copy is made and every page "
             "checked\n",
             access.url);
  const boost::json::value answer = parse_json_exactly(server.post("/v1/backups", "{}", kLongest));
  if (options.json) {
    fmt::print("{}", pretty_json(answer));
    return;
  }
  const boost::json::object& row = answer.as_object();
  print_line("{}: {:.1f} MiB in {:.1f} s, every page checked; audit head {}\n",
             text_of(row, "name"), number_of(row, "bytes") / (1 << 20), number_of(row, "seconds"),
             text_of(row, "audit_head"));
}

void backup(const FileOptions& options) {
  ClientOptions access = options.access;
  if (options.ledger.empty()) access.url = url_or_environment(access.url, "");
  if (access.url.empty() && options.ledger.empty()) {
    throw ConfigError("", 0, "--ledger", "(none)",
                      "either --ledger FILE with --out FILE, or --url URL (or GNOMON_URL)");
  }
  if (!access.url.empty()) {
    backup_by_daemon(options, access);
    return;
  }
  if (options.out.empty()) {
    throw ConfigError("", 0, "--out", "", "the name of the copy");
  }
  print_report(back_up_ledger(options.ledger, options.out, with_progress(options)), options.json);
}

void restore(const FileOptions& options) {
  const RestoreReport report =
      restore_ledger(options.from, options.ledger, options.force, with_progress(options));
  if (!report.replaced.empty()) {
    fmt::print(stderr, "gnomon: what was there is now {}\n", report.replaced.string());
  }
  print_report(report.copy, options.json);
}

void add_backup(Command& ledger, const std::shared_ptr<FileOptions>& options) {
  Command* command = ledger.add_subcommand(
      "backup", "Copies a ledger while gnomond writes it, and checks every page of the copy");
  CommandOption* file = command->add_option("--ledger", options->ledger, "ledger.sqlite");
  add_url_option_beside(*file, *command, options->access,
                        "Ask the gnomond there to write one into its [backup] folder");
  command->add_option("--out", options->out, "The copy, which must not be there yet");
  command->add_flag("--compact", options->compact, "Leave out free pages: smaller, and slower");
  command->add_flag("--json", options->json, "Print JSON");
  command->footer(
      "The copy is made under another name, synced, checked and renamed: one that is there is "
      "good.\n\n"
      "Example:\n  gnomon ledger backup --ledger ledger.sqlite --out backup/monday.sqlite\n"
      "  gnomon ledger backup --url http://127.0.0.1:7717");
  command->callback([options] { backup(*options); });
}

void add_restore(Command& ledger, const std::shared_ptr<FileOptions>& options) {
  Command* command =
      ledger.add_subcommand("restore", "Checks a backup and puts a copy of it in a ledger's place");
  command->add_option("--from", options->from, "The backup")->required();
  command->add_option("--ledger", options->ledger, "Where gnomond looks for its ledger")
      ->required();
  command->add_flag("--force", options->force,
                    "When a ledger is there: keep it as LEDGER.replaced-TIME");
  command->add_flag("--json", options->json, "Print JSON");
  command->footer(
      "gnomond must be stopped. Trainers register again and send what the backup does not have, "
      "as far as\ntheir spools still do.\n\n"
      "Example:\n  gnomon ledger restore --from backup/monday.sqlite --ledger ledger.sqlite "
      "--force");
  command->callback([options] { restore(*options); });
}

}  // namespace

void add_ledger_file_commands(Command& app, Context& context) {
  auto options = std::make_shared<FileOptions>();
  Command* ledger = app.add_subcommand("ledger", "A ledger's file: backup, restore, check, repair");
  ledger->require_subcommand(1);
  add_backup(*ledger, options);
  add_restore(*ledger, options);
  add_ledger_state_commands(*ledger, context);
}

}  // namespace gnomon::cli
