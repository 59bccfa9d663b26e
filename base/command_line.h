// The command lines of all programs. CLI11 reads them, and only base/command_line.cc includes it:
// each inclusion costs seconds of compiling. The methods have CLI11's names and meanings.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
class Validator;
}  // namespace CLI

namespace gnomon {

// What is accepted as a value; --help and errors say it.
using OptionCheck = std::shared_ptr<const CLI::Validator>;
OptionCheck one_of(const std::vector<std::string>& words);
OptionCheck in_range(int64_t low, int64_t high);
OptionCheck in_range(int low, int high);
OptionCheck in_range(double low, double high);
OptionCheck positive_number();
OptionCheck not_negative();
OptionCheck existing_file();
OptionCheck existing_directory();
// `what_is_wrong` returns it, or nothing where the value is accepted.
OptionCheck accepted_by(std::function<std::string(const std::string&)> what_is_wrong);

// A value that an option cannot have, thrown where the option is read: "--name: what".
[[noreturn]] void refuse_option(const std::string& name, const std::string& what);

class CommandOption {
 public:
  explicit CommandOption(CLI::Option* option) : option_(option) {}

  CommandOption* required();
  CommandOption* check(const OptionCheck& check);
  CommandOption* type_name(const std::string& name);
  CommandOption* group(const std::string& name);
  CommandOption* capture_default_str();
  CommandOption* excludes(CommandOption* other);
  CommandOption* expected(int least, int most);
  CommandOption* take_all();  // given twice, it has both values
  CommandOption* envname(const std::string& name);
  CommandOption* size_in_bytes();  // "5MB" is 5,000,000 bytes, "5MiB" 5 * 2^20
  std::string name() const;
  // The values given, as they were written.
  std::vector<std::string> results() const;

 private:
  CLI::Option* option_;
};

class Command {
 public:
  Command(const std::string& description, const std::string& name);
  ~Command();

  Command* add_subcommand(const std::string& name, const std::string& description);
  // Options of which the caller may ask that one is given (require_option).
  Command* add_option_group(const std::string& name);
  // `value` must outlive the command. T: one of those at the end of base/command_line.cc.
  template <typename T>
  CommandOption* add_option(const std::string& names, T& value, const std::string& description);
  template <typename T>
  CommandOption* add_option_function(const std::string& names,
                                     const std::function<void(const T&)>& take,
                                     const std::string& description);
  CommandOption* add_flag(const std::string& names, bool& value, const std::string& description);

  Command* callback(const std::function<void()>& run);
  Command* footer(const std::string& text);
  Command* group(const std::string& name);
  Command* require_subcommand(int least, int most);
  Command* require_subcommand(int count) { return require_subcommand(count, count); }
  Command* require_option(int count);
  // Words that are no option of this command are kept in remaining(), in the order given.
  Command* allow_extras();
  std::vector<std::string> remaining() const;

  void set_version_flag(const std::string& text);
  // After parsing.
  bool parsed() const;
  size_t count(const std::string& option) const;
  std::string chosen_subcommand() const;  // or empty
  const std::deque<CommandOption>& options() const { return options_; }

  // Runs the callbacks of what was chosen. Returns the status to end with at once: 0 after --help
  // and --version, `bad_input` after an error, which stderr names with what was probably meant.
  std::optional<int> parse(std::vector<std::string> arguments, int bad_input);
  std::optional<int> parse(int argc, char** argv, int bad_input);

 private:
  explicit Command(CLI::App* app);
  CommandOption* keep(CLI::Option* option);
  Command* keep(CLI::App* app);

  std::unique_ptr<CLI::App> own_;  // of the outermost
  CLI::App* app_;
  std::deque<CommandOption> options_;
  std::deque<std::unique_ptr<Command>> subcommands_;
};

}  // namespace gnomon
