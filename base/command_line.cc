#include "base/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/suggestion.h"

namespace gnomon {
namespace {

template <typename Validator>
OptionCheck shared(Validator validator) {
  return std::make_shared<const CLI::Validator>(std::move(validator));
}

// The innermost command that was recognised.
const CLI::App& innermost(const CLI::App& app) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  return chosen.empty() ? app : innermost(*chosen.back());
}

// What the parser says, and what was probably meant or where to look.
std::string wrong_option(const CLI::App& command, const std::string& word,
                         const CLI::ParseError& error) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  const std::string meant = did_you_mean(word.substr(0, word.find('=')), names);
  if (!meant.empty()) return error.what() + meant;
  // Where a value is wrong, the parser says what is right.
  const bool has_wrong_value = dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr &&
                               dynamic_cast<const CLI::RequiredError*>(&error) == nullptr;
  return error.what() + std::string(has_wrong_value ? "" : "; --help says what is accepted");
}

std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = innermost(app);
  const std::vector<const CLI::App*> known =
      command.get_subcommands([](const CLI::App* one) { return !one->get_name().empty(); });
  const std::vector<std::string> extra = command.remaining();
  // An option that is wrong, where a command may stand but need not.
  const bool optional = command.get_require_subcommand_min() == 0;
  if (known.empty() || (optional && (extra.empty() || extra.front().starts_with('-')))) {
    return wrong_option(command, extra.empty() ? "" : extra.front(), error);
  }
  std::vector<std::string> names;
  names.reserve(known.size());
  for (const CLI::App* one : known) names.push_back(one->get_name());
  return fmt::format("{}: not accepted; expected one of {}{}",
                     extra.empty() ? "no command" : "command = " + extra.front(),
                     fmt::join(names, ", "),
                     extra.empty() ? "" : did_you_mean(extra.front(), names));
}

}  // namespace

OptionCheck one_of(const std::vector<std::string>& words) { return shared(CLI::IsMember(words)); }
OptionCheck in_range(int64_t low, int64_t high) { return shared(CLI::Range(low, high)); }
OptionCheck in_range(int low, int high) { return shared(CLI::Range(low, high)); }
OptionCheck in_range(double low, double high) { return shared(CLI::Range(low, high)); }
OptionCheck positive_number() { return shared(CLI::PositiveNumber); }
OptionCheck not_negative() { return shared(CLI::NonNegativeNumber); }
OptionCheck existing_file() { return shared(CLI::ExistingFile); }
OptionCheck existing_directory() { return shared(CLI::ExistingDirectory); }
OptionCheck accepted_by(std::function<std::string(const std::string&)> what_is_wrong) {
  return shared(
      CLI::Validator([what_is_wrong](std::string& value) { return what_is_wrong(value); }, "", ""));
}

void refuse_option(const std::string& name, const std::string& what) {
  throw CLI::ValidationError(name, what);
}

CommandOption* CommandOption::required() {
  option_->required();
  return this;
}
CommandOption* CommandOption::check(const OptionCheck& check) {
  option_->check(*check);
  return this;
}
CommandOption* CommandOption::type_name(const std::string& name) {
  option_->type_name(name);
  return this;
}
CommandOption* CommandOption::group(const std::string& name) {
  option_->group(name);
  return this;
}
CommandOption* CommandOption::capture_default_str() {
  option_->capture_default_str();
  return this;
}
CommandOption* CommandOption::excludes(CommandOption* other) {
  option_->excludes(other->option_);
  return this;
}
CommandOption* CommandOption::expected(int least, int most) {
  option_->expected(least, most);
  return this;
}
CommandOption* CommandOption::take_all() {
  option_->take_all();
  return this;
}
CommandOption* CommandOption::envname(const std::string& name) {
  option_->envname(name);
  return this;
}
CommandOption* CommandOption::size_in_bytes() {
  option_->transform(CLI::AsSizeValue(true));
  return this;
}
std::string CommandOption::name() const { return option_->get_name(); }
std::vector<std::string> CommandOption::results() const {
  return option_->count() == 0 ? std::vector<std::string>() : option_->results();
}

Command::Command(const std::string& description, const std::string& name)
    : own_(std::make_unique<CLI::App>(description, name)), app_(own_.get()) {}
Command::Command(CLI::App* app) : app_(app) {}
Command::~Command() = default;

CommandOption* Command::keep(CLI::Option* option) { return &options_.emplace_back(option); }
Command* Command::keep(CLI::App* app) {
  return subcommands_.emplace_back(std::unique_ptr<Command>(new Command(app))).get();
}

Command* Command::add_subcommand(const std::string& name, const std::string& description) {
  return keep(app_->add_subcommand(name, description));
}
Command* Command::add_option_group(const std::string& name) {
  return keep(app_->add_option_group(name));
}
template <typename T>
CommandOption* Command::add_option(const std::string& names, T& value,
                                   const std::string& description) {
  return keep(app_->add_option(names, value, description));
}
template <typename T>
CommandOption* Command::add_option_function(const std::string& names,
                                            const std::function<void(const T&)>& take,
                                            const std::string& description) {
  return keep(app_->add_option_function<T>(names, take, description));
}
CommandOption* Command::add_flag(const std::string& names, bool& value,
                                 const std::string& description) {
  return keep(app_->add_flag(names, value, description));
}

Command* Command::callback(const std::function<void()>& run) {
  app_->callback(run);
  return this;
}
Command* Command::footer(const std::string& text) {
  app_->footer(text);
  return this;
}
Command* Command::group(const std::string& name) {
  app_->group(name);
  return this;
}
Command* Command::require_subcommand(int least, int most) {
  app_->require_subcommand(static_cast<size_t>(least), static_cast<size_t>(most));
  return this;
}
Command* Command::require_option(int count) {
  app_->require_option(count);
  return this;
}
Command* Command::allow_extras() {
  app_->allow_extras();
  return this;
}
std::vector<std::string> Command::remaining() const { return app_->remaining(); }

void Command::set_version_flag(const std::string& text) {
  app_->set_version_flag("--version", text);
}
bool Command::parsed() const { return app_->parsed(); }
size_t Command::count(const std::string& option) const { return app_->count(option); }
std::string Command::chosen_subcommand() const {
  const std::vector<CLI::App*> chosen = app_->get_subcommands();
  return chosen.empty() ? "" : chosen.front()->get_name();
}

std::optional<int> Command::parse(std::vector<std::string> arguments, int bad_input) {
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  try {
    app_->parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app_->exit(error);  // --help, --version
    fmt::print(stderr, "{}: {}\n", app_->get_name(), explain(*app_, error));
    return bad_input;
  }
  return std::nullopt;
}
std::optional<int> Command::parse(int argc, char** argv, int bad_input) {
  return parse(std::vector<std::string>(argv + 1, argv + argc), bad_input);
}

#define GNOMON_OPTION_OF(T) \
  template CommandOption* Command::add_option(const std::string&, T&, const std::string&);
GNOMON_OPTION_OF(std::string)
GNOMON_OPTION_OF(int)
GNOMON_OPTION_OF(int64_t)
GNOMON_OPTION_OF(uint64_t)
GNOMON_OPTION_OF(double)
GNOMON_OPTION_OF(std::optional<std::string>)
GNOMON_OPTION_OF(std::optional<int>)
GNOMON_OPTION_OF(std::optional<int64_t>)
GNOMON_OPTION_OF(std::optional<uint64_t>)
GNOMON_OPTION_OF(std::optional<double>)
GNOMON_OPTION_OF(std::vector<std::string>)
GNOMON_OPTION_OF(std::vector<int>)
GNOMON_OPTION_OF(std::vector<int64_t>)
GNOMON_OPTION_OF(std::vector<double>)
GNOMON_OPTION_OF(std::vector<std::filesystem::path>)
#undef GNOMON_OPTION_OF
template CommandOption* Command::add_option_function(const std::string&,
                                                     const std::function<void(const std::string&)>&,
                                                     const std::string&);
template CommandOption* Command::add_option_function(
    const std::string&, const std::function<void(const std::vector<std::string>&)>&,
    const std::string&);

}  // namespace gnomon
