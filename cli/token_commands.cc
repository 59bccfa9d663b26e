// `gnomon token`: the file of who may speak to gnomond.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>

#include "base/errors.h"
#include "base/named_file.h"
#include "base/redaction.h"
#include "base/sha256.h"
#include "base/wall_clock.h"
#include "cli/commands.h"
#include "cli/duration.h"
#include "cli/json_output.h"
#include "cli/newest_names.h"
#include "cli/table.h"
#include "controller/auth/tokens.h"
#include "protocol/toml_reader.h"

namespace gnomon::cli {
namespace {

namespace fs = std::filesystem;

struct TokenOptions {
  std::string file;    // of the tokens
  std::string config;  // of gnomond, which names the file
  std::string name;
  std::string role;
  std::string expires;
  std::vector<std::string> runs;
};

constexpr double kLongestTerm = 3650.0 * 86400;  // ten years

// The one key of gnomond's configuration that is needed here; the rest of it is gnomond's.
fs::path file_of_config(const std::string& config) {
  std::string text;
  try {
    text = read_named_file(config);
  } catch (const Error& error) {
    throw ConfigError("", 0, "--config", config,
                      fmt::format("a file that can be read ({})", error.what()));
  }
  try {
    TomlTable auth = TomlTable::parse(text, config).table("auth");
    const std::string name = auth.text("tokens", "");
    if (name.empty()) {
      auth.refuse("tokens", "the name of the file of tokens, like \"tokens.toml\"");
    }
    return fs::absolute(fs::path(config).parent_path() / name).lexically_normal();
  } catch (const ConfigError& error) {
    throw without_secrets(error);
  }
}

fs::path token_file(const TokenOptions& options) {
  if (!options.file.empty()) return options.file;
  if (!options.config.empty()) return file_of_config(options.config);
  if (const char* file = std::getenv("GNOMON_TOKENS"); file != nullptr && *file != '\0')
    return file;
  throw ConfigError("", 0, "--file", "\"\"",
                    "the file of tokens (--file, GNOMON_TOKENS), or gnomond's configuration that "
                    "names it (--config)");
}

void add_file_options(Command& command, TokenOptions& options) {
  command.add_option("--file", options.file, "File of tokens (or GNOMON_TOKENS)")
      ->type_name("FILE");
  command
      .add_option("--config", options.config,
                  "gnomond's configuration, whose [auth] tokens names that file")
      ->type_name("FILE");
}

// Does `work` with the file of tokens; what is wrong with the file as a whole is an option's fault.
void with_tokens(const TokenOptions& options, const std::function<void(const fs::path&)>& work) {
  const fs::path file = token_file(options);
  try {
    work(file);
  } catch (const ConfigError& error) {
    const bool of_option = options.config.empty() || !options.file.empty();
    if (!error.file().empty() || error.key() != "auth.tokens" || !of_option) throw;
    throw ConfigError("", 0, "--file", error.value(), error.accepted());
  }
}

// The secret goes to standard output, alone on its line, so that a script can take it; the rest is
// for people.
void create(const TokenOptions& options, const fs::path& file) {
  if (const std::string accepted = problem_with_token_name(options.name); !accepted.empty()) {
    throw ConfigError("", 0, "NAME", fmt::format("\"{}\"", options.name), accepted);
  }
  const Role role = *role_from_name(options.role);
  if (const std::string accepted = problem_with_runs(options.runs, role); !accepted.empty()) {
    throw ConfigError("", 0, "--runs", fmt::format("\"{}\"", fmt::join(options.runs, " ")),
                      accepted);
  }
  const double now = now_seconds();
  const double expires = options.expires.empty()
                             ? 0
                             : now + parse_duration("--expires", options.expires, kLongestTerm);
  const std::string secret = make_secret();
  edit_tokens(file, [&](std::vector<Token>& tokens) {
    for (const Token& token : tokens) {
      if (token.name == options.name) {
        throw ConfigError("", 0, "NAME", fmt::format("\"{}\"", options.name),
                          fmt::format("a name that {} has not yet, or first gnomon token revoke {}",
                                      file.string(), options.name));
      }
    }
    tokens.push_back({options.name, role, sha256_hex(secret), std::floor(now), std::floor(expires),
                      options.runs});
  });
  fmt::print(stderr, "{} is a token of the role {}{}{}, in {}. This is its only copy:\n",
             options.name, options.role,
             options.runs.empty() ? "" : fmt::format(" for {}", fmt::join(options.runs, ", ")),
             expires > 0 ? fmt::format(" until {}", utc_text(expires)) : "", file.string());
  fmt::print("{}\n", secret);
}

void list(const fs::path& file, bool json) {
  const double now = now_seconds();
  const std::vector<Token> tokens = read_tokens(file);
  if (json) {
    boost::json::array rows;
    for (const Token& token : tokens) {
      boost::json::value expires = nullptr;
      if (token.expires > 0) expires = utc_text(token.expires);
      boost::json::value runs = nullptr;
      if (!token.runs.empty()) runs = boost::json::value_from(token.runs);
      rows.push_back({{"name", token.name},
                      {"role", role_name(token.role)},
                      {"created", utc_text(token.created)},
                      {"expires", expires},
                      {"runs", runs}});
    }
    fmt::print("{}", pretty_json(rows));
    return;
  }
  Table table({"name", "role", "runs", "created", "expires"});
  for (const Token& token : tokens) {
    table.add({token.name, role_name(token.role),
               token.runs.empty() ? "all" : fmt::format("{}", fmt::join(token.runs, ", ")),
               utc_text(token.created),
               token.expires == 0
                   ? "never"
                   : utc_text(token.expires) + (token.expires <= now ? " (over)" : "")});
  }
  fmt::print("{}", table.text());
}

void revoke(const TokenOptions& options, const fs::path& file) {
  read_tokens(file);  // one that is not there is not made here
  edit_tokens(file, [&](std::vector<Token>& tokens) {
    const size_t gone =
        std::erase_if(tokens, [&](const Token& token) { return token.name == options.name; });
    if (gone == 0) {
      std::vector<std::string> known;
      known.reserve(tokens.size());
      for (const Token& token : tokens) known.push_back(token.name);
      throw ConfigError("", 0, "NAME", fmt::format("\"{}\"", options.name),
                        known.empty() ? fmt::format("a token; {} has none", file.string())
                                      : "one of " + newest_names(known));
    }
  });
  fmt::print("{} is revoked in {}; a daemon that reads it refuses the token within a second\n",
             options.name, file.string());
}

}  // namespace

void add_token_commands(Command& app, Context&) {
  Command* token = app.add_subcommand("token", "Tokens: who may speak to gnomond, and as what");
  token->require_subcommand(1);
  auto options = std::make_shared<TokenOptions>();

  Command* made = token->add_subcommand("create", "Makes a token and prints its secret, once");
  made->add_option("NAME", options->name, "Who it is for; stands in logs and the audit log")
      ->required();
  made->add_option("--role", options->role,
                   "What it may do, besides reading: reader nothing; trainer: report runs, take "
                   "directives;\nverifier: lease replays; operator: overrides and policies; admin: "
                   "everything")
      ->required()
      ->check(one_of(role_names()));
  made->add_option("--expires", options->expires, "After this time, like 90d; without it, never");
  made->add_option("--runs", options->runs,
                   "Names of the runs that it may change, with * and ?; of trainers and operators. "
                   "Without it, all")
      ->type_name("GLOB");
  add_file_options(*made, *options);
  made->footer(
      "Example:\n  gnomon token create trainer-7b --role trainer --config /etc/gnomon/gnomond.toml "
      "> trainer-7b.token\n  GNOMON_TOKEN_FILE=trainer-7b.token gnomon-trainer --config "
      "run.toml\n"
      "  gnomon token create team-a --role operator --runs 'team-a-*' --file tokens.toml\n\n"
      "The file keeps a hash of the secret, never the secret. A running gnomond reads the file "
      "again by itself.");
  made->callback(
      [options] { with_tokens(*options, [&](const fs::path& file) { create(*options, file); }); });

  auto json = std::make_shared<bool>(false);
  Command* listed = token->add_subcommand("list", "Shows the tokens, without their secrets");
  add_file_options(*listed, *options);
  listed->add_flag("--json", *json, "As JSON");
  listed->footer("Example:\n  gnomon token list --config /etc/gnomon/gnomond.toml");
  listed->callback(
      [options, json] { with_tokens(*options, [&](const fs::path& file) { list(file, *json); }); });

  Command* revoked = token->add_subcommand("revoke", "Takes a token back");
  revoked->add_option("NAME", options->name, "As gnomon token list shows it")->required();
  add_file_options(*revoked, *options);
  revoked->footer(
      "Example:\n  gnomon token revoke trainer-7b --config /etc/gnomon/gnomond.toml\n"
      "  gnomon token revoke trainer-7b --file tokens.toml");
  revoked->callback(
      [options] { with_tokens(*options, [&](const fs::path& file) { revoke(*options, file); }); });
}

}  // namespace gnomon::cli
