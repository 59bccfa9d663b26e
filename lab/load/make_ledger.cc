// Makes a large ledger to measure starts and backups on by hand. Not built by default.
#include <cstdio>
#include <exception>

#include "base/command_line.h"
#include "base/progress.h"
#include "lab/load/large_ledger.h"

int main(int argc, char** argv) try {
  gnomon::Command app("Makes a large ledger to measure starts and backups on.", "make_ledger");
  std::string file;
  double gigabytes = 5;
  app.add_option("--ledger", file, "File to make")->required();
  app.add_option("--gigabytes", gigabytes, "Its size")->capture_default_str();
  app.footer("Example:\n  make_ledger --ledger large.sqlite --gigabytes 5");
  if (const auto status = app.parse(argc, argv, 2)) return *status;
  gnomon::Progress progress("making", static_cast<int64_t>(gigabytes * 1000));
  gnomon::bench::make_large_ledger(file, gigabytes * 1e9, progress);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "make_ledger: %s\n", error.what());
  return 1;
}
