#include <SQLiteCpp/Statement.h>
#include <fmt/format.h>

#include <charconv>
#include <memory>

#include "base/counted.h"
#include "base/errors.h"
#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/ledger_view.h"
#include "cli/printing.h"
#include "cli/server.h"
#include "cli/table.h"
#include "storage/ledger_audit.h"

namespace gnomon::cli {
namespace {

struct AuditOptions {
  std::string ledger;
  ServerOptions server;
  std::string expect;
  std::string from;
  int64_t rows = 50;
};

void check_hash(const std::string& option, const std::string& given, const std::string& hash) {
  if (hash.size() != 64 || hash.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw ConfigError("", 0, option, given,
                      "64 hexadecimal digits in lower case, as `gnomon audit verify` prints them");
  }
}

// "12:5f2a..." as `verify` prints it; --expect takes the hash alone too.
std::optional<ledger::NotedHash> noted_hash(const AuditOptions& options) {
  const std::string option = options.from.empty() ? "--expect" : "--from";
  const std::string& given = options.from.empty() ? options.expect : options.from;
  if (given.empty()) return std::nullopt;
  ledger::NotedHash noted;
  const size_t colon = given.find(':');
  if (colon == std::string::npos && option == "--from") {
    throw ConfigError("", 0, option, given, "ID:HASH, as `gnomon audit verify` prints it");
  }
  if (colon != std::string::npos) {
    const char* end = given.data() + colon;
    const auto parsed = std::from_chars(given.data(), end, noted.id);
    if (parsed.ec != std::errc() || parsed.ptr != end || noted.id < 0) {
      throw ConfigError("", 0, option, given, "ID:HASH, with the number of a row");
    }
  }
  noted.hash = colon == std::string::npos ? given : given.substr(colon + 1);
  check_hash(option, given, noted.hash);
  return noted;
}

std::string verdict_json(const ledger::AuditVerdict& verdict) {
  boost::json::object json;
  json["ok"] = verdict.good();
  json["rows"] = verdict.rows;
  json["head"] = {{"id", verdict.last_id}, {"hash", verdict.head}};
  json["first_bad"] =
      verdict.first_bad == 0 ? boost::json::value(nullptr) : boost::json::value(verdict.first_bad);
  json["problem"] =
      verdict.good() ? boost::json::value(nullptr) : boost::json::value(verdict.problem);
  return pretty_json(json);
}

void verify(const AuditOptions& options, Context& context) {
  const std::optional<ledger::NotedHash> noted = noted_hash(options);
  ledger::AuditVerdict verdict;
  try {
    SQLite::Database database = open_for_looking(options.ledger);
    verdict = ledger::verify_audit(database, noted);
  } catch (const SQLite::Exception& error) {
    fmt::print(stderr, "gnomon: {}\n", ledger_error("cannot read " + options.ledger, error).what());
    context.status = kExitBadInput;
    return;
  } catch (const LedgerError& error) {
    fmt::print(stderr, "gnomon: {}\n", error.what());
    context.status = kExitBadInput;
    return;
  }
  if (!verdict.good()) context.status = kExitFailure;
  if (options.server.json) {
    fmt::print("{}", verdict_json(verdict));
  } else if (verdict.good()) {
    fmt::print("{} of the chain, each fits the one before{}\nhead {}:{}\n",
               counted(verdict.rows, "row"), noted ? "; what was noted is in the chain" : "",
               verdict.last_id, verdict.head);
  } else {
    print_line(stderr, "gnomon: audit log: {}\n", verdict.problem);
  }
}

boost::json::array rows_of_file(const AuditOptions& options) {
  const std::string& name = options.server.run;
  const int64_t run = name.empty() ? 0 : LedgerView(options.ledger).run_named(name).id;
  SQLite::Database database = open_for_looking(options.ledger);
  SQLite::Statement rows(database,
                         "SELECT * FROM (SELECT id, time, run, what, detail, principal FROM audit "
                         "WHERE ?1 = 0 OR run = ?1 ORDER BY id DESC LIMIT ?2) ORDER BY id");
  rows.bind(1, run);
  rows.bind(2, options.rows);
  boost::json::array list;
  while (rows.executeStep()) {
    boost::json::object row;
    row["id"] = rows.getColumn(0).getInt64();
    row["time"] = rows.getColumn(1).getDouble();
    row["run"] = nullptr;
    if (!rows.getColumn(2).isNull()) row["run"] = rows.getColumn(2).getInt64();
    row["what"] = rows.getColumn(3).getString();
    row["detail"] = rows.getColumn(4).getString();
    row["principal"] = rows.getColumn(5).getString();
    list.push_back(std::move(row));
  }
  return list;
}

boost::json::array rows_of_server(const AuditOptions& options) {
  ClientOptions access = options.server.access;
  access.url = url_or_environment(access.url, ServerOptions().access.url);
  Server server(access);
  std::string target = fmt::format("/v1/audit?newest={}", options.rows);
  if (!options.server.run.empty()) {
    target += "&run=" + server.resolve_run(options.server.run);
  }
  return server.get_list(target);
}

void list(const AuditOptions& options) {
  const boost::json::array rows =
      options.ledger.empty() ? rows_of_server(options) : rows_of_file(options);
  if (options.server.json) {
    fmt::print("{}", pretty_json(rows));
    return;
  }
  Table table({">id", "time", "run", "who", "what", "detail"});
  for (const boost::json::value& value : rows) {
    const boost::json::object& row = value.as_object();
    const std::string detail = text_of(row, "detail");
    table.add({text_of(row, "id"), format_time(number_of(row, "time")),
               text_of(row, "run").empty() ? "-" : run_id_of(row),
               text_of(row, "principal").empty() ? "-" : text_of(row, "principal"),
               text_of(row, "what"), detail.substr(0, detail.find('\n'))});
  }
  fmt::print("{}", table.empty() ? "nothing has been recorded yet\n" : table.text());
}

}  // namespace

void add_audit_commands(Command& app, Context& context) {
  auto options = std::make_shared<AuditOptions>();
  Command* audit = app.add_subcommand(
      "audit", "Refused requests and people's changes, as a chain that shows tampering");
  audit->require_subcommand(1);

  Command* check = audit->add_subcommand(
      "verify", "Follows the chain of hashes and names the first row that does not fit");
  check->add_option("--ledger", options->ledger, "ledger.sqlite; gnomond may be writing it")
      ->required();
  CommandOption* expect =
      check->add_option("--expect", options->expect,
                        "A head that was noted: it must be in the chain (HASH, ID:HASH)");
  check->add_option("--from", options->from, "A row that was noted: it must be there (ID:HASH)")
      ->excludes(expect);
  check->add_flag("--json", options->server.json, "Print JSON");
  check->footer(
      "The chain alone cannot tell that its end was cut off. Note the head somewhere else from "
      "time to time\nand give it back with --expect.\n\n"
      "Example:\n  gnomon audit verify --ledger ledger.sqlite\n"
      "  gnomon audit verify --ledger ledger.sqlite --expect 128:5f0c...\n\n"
      "Exit status: 0 all fits; 1 a row does not, or what was noted is gone; 2 the file cannot be "
      "read.");
  check->callback([options, &context] { verify(*options, context); });

  Command* rows = audit->add_subcommand("list", "The newest rows");
  rows->add_option("RUN", options->server.run, "run-1, name or name/job; all runs when absent");
  CommandOption* file =
      rows->add_option("--ledger", options->ledger, "Read this file in place of asking gnomond");
  options->server.access.url.clear();
  add_url_option_beside(*file, *rows, options->server.access, "Where gnomond listens");
  rows->add_option("--rows", options->rows, "At most so many")
      ->check(in_range(int64_t{1}, int64_t{100'000}))
      ->capture_default_str();
  rows->add_flag("--json", options->server.json, "Print JSON");
  rows->footer("Example:\n  gnomon audit list demo --rows 20");
  rows->callback([options] { list(*options); });
}

}  // namespace gnomon::cli
