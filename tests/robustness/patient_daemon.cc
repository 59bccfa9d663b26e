#include "tests/robustness/patient_daemon.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <csignal>

#include "base/files.h"
#include "tests/robustness/story.h"

namespace gnomon::robustness {
namespace {

std::vector<std::string> arguments(const std::filesystem::path& folder) {
  std::filesystem::create_directory(folder / "backups");
  write_file_atomically(folder / "gnomond.toml", "[backup]\nfolder = \"backups\"\nkeep = 3\n");
  return {"--config", (folder / "gnomond.toml").string()};
}

}  // namespace

PatientDaemon::PatientDaemon(Scene& scene, Fault fault, Draw& draw, double lease_ttl_seconds)
    : scene_(scene),
      fault_(fault),
      draw_(draw),
      process_(arguments(files_.path()), policy_text(lease_ttl_seconds)) {}

void PatientDaemon::start(bool with_failpoints) {
  std::string failpoints = with_failpoints ? failpoints_of(fault_, draw_) : "";
  if (fault_ == Fault::kClock) {
    failpoints = "wall_clock=offset:" + (files_ / "clock").string();
  }
  test::ChildOptions options;
  if (!failpoints.empty()) options.environment = {{"GNOMON_FAILPOINTS", failpoints}};
  scene_.record.count("daemon starts");
  try {
    process_.start(options);
  } catch (const Error&) {
    if (failpoints.empty()) throw;
    scene_.record.count("daemon died while it started");
    process_.start();
  }
  scene_.move_to(process_.port());
}

void PatientDaemon::kill() { process_.kill(); }

bool PatientDaemon::running() { return process_.running(); }

void PatientDaemon::terminate() {
  const int status = process_.stop();
  if (status != 0) {
    scene_.record.violation(fmt::format("SIGTERM ended the daemon with status {}", status));
  }
}

void PatientDaemon::limit_files(bool limited) {
  rlimit limit{};
  if (::prlimit(process_.pid(), RLIMIT_FSIZE, nullptr, &limit) != 0) return;
  limit.rlim_cur = limited ? 4096 : limit.rlim_max;
  ::prlimit(process_.pid(), RLIMIT_FSIZE, &limit, nullptr);
}

void PatientDaemon::set_clock_offset(int64_t seconds) {
  write_file_atomically(files_ / "clock", fmt::format("{}", seconds));
}

}  // namespace gnomon::robustness
