// What the programs behind `gnomon` have in common: a command line, errors and exit statuses.
#pragma once

#include <functional>

#include "base/command_line.h"
#include "cli/commands.h"

namespace gnomon::cli {

// Parses the command line by what `add` adds, runs the command that was chosen, and returns the
// exit status: 0 done, 1 failed, 2 bad input. Errors go to stderr, a line each.
int run_program(int argc, char** argv, const char* description,
                const std::function<void(Command&, Context&)>& add);

// Commands of a program beside this one, such as gnomon-lab. They are listed in --help; the first
// word on the command line that names one starts that program in place of this one.
struct Sibling {
  const char* program;
  struct Entry {
    const char* name;
    const char* what;
  };
  std::vector<Entry> commands;
};
void add_sibling(Command& app, const Sibling& sibling);
// Returns where no sibling has the command. Throws Error where its program is not there.
void start_sibling(const std::vector<Sibling>& siblings, char** argv);

}  // namespace gnomon::cli
