#include "tests/cli/program.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/files.h"
#include "tests/cli/synthetic_ledger.h"

namespace gnomon::cli {
namespace {

[[noreturn]] void become(const std::vector<std::string>& arguments, const std::string& output,
                         const std::string& errors) {
  std::string program = GNOMON_PROGRAM;
  std::vector<std::string> copies = arguments;
  std::vector<char*> argv = {program.data()};
  for (std::string& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ::dup2(::open("/dev/null", O_RDONLY), 0);
  ::dup2(::open(output.c_str(), O_WRONLY | O_CREAT, 0644), 1);
  ::dup2(::open(errors.c_str(), O_WRONLY | O_CREAT, 0644), 2);
  ::unsetenv("GNOMON_URL");
  ::setenv("USER", "tester", 1);
  ::execv(program.c_str(), argv.data());
  ::_exit(127);
}

}  // namespace

ProgramResult run_gnomon(const std::vector<std::string>& arguments) {
  TemporaryDirectory directory;
  const std::string output = directory.path() / "output", errors = directory.path() / "errors";
  pid_t child = ::fork();
  if (child == 0) become(arguments, output, errors);
  int status = 0;
  ::waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(output), read_file(errors)};
}

}  // namespace gnomon::cli
