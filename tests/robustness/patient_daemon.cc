#include "tests/robustness/patient_daemon.h"

#include <SQLiteCpp/Database.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "base/files.h"
#include "tests/robustness/scenario.h"

namespace gnomon::robustness {
namespace {

constexpr int kBackupsKept = 3;

std::string log_end(const Error& error) {
  constexpr size_t kLogShown = 1500;
  const std::string log = error.what();
  return log.substr(log.size() - std::min(log.size(), kLogShown));
}

std::vector<std::string> arguments(const std::filesystem::path& folder, double lease_ttl_seconds,
                                   const std::vector<std::unique_ptr<Hook>>& hooks) {
  std::filesystem::create_directory(folder / "backups");
  std::string text = fmt::format("[backup]\nfolder = \"backups\"\nkeep = {}\n", kBackupsKept);
  for (const auto& hook : hooks) {
    write_file_atomically(folder / (hook->name() + ".key"), hook->secret() + "\n");
    text += hook->configuration(hook->name() + ".key");
  }
  write_file_atomically(folder / "gnomond.toml", text);
  write_file_atomically(folder / "policy.toml", policy_text(lease_ttl_seconds));
  return {"--config", (folder / "gnomond.toml").string(), "--policy",
          (folder / "policy.toml").string()};
}

FailingCalls* shared_calls(const std::filesystem::path& name) {
  write_file_atomically(name, std::string(sizeof(FailingCalls), '\0'));
  const FileDescriptor file = FileDescriptor::open(name, O_RDWR);
  void* const at =
      ::mmap(nullptr, sizeof(FailingCalls), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (at == MAP_FAILED) throw SystemError("map", name.string(), errno);
  return static_cast<FailingCalls*>(at);
}

}  // namespace

PatientDaemon::PatientDaemon(Scene& scene, Fault fault, Draw& draw, double lease_ttl_seconds,
                             const std::vector<std::unique_ptr<Hook>>& hooks)
    : scene_(scene),
      fault_(fault),
      draw_(draw),
      calls_(shared_calls(files_ / "calls")),
      process_(arguments(files_.path(), lease_ttl_seconds, hooks)) {
  if (fault == Fault::kFull) disk_ = std::make_unique<SmallDisk>(process_.folder());
  if (fault != Fault::kPower || !PowerCuts::possible()) return;
  power_ = std::make_unique<PowerCuts>(
      std::vector<std::string>{process_.ledger().string(), (files_ / "backups").string()},
      files_ / "journal", std::getenv(kPowerLies) != nullptr);
}

PatientDaemon::~PatientDaemon() {
  process_.kill();
  ::munmap(calls_, sizeof(FailingCalls));
}

// One that ended in any way: its disk is what it might be then.
void PatientDaemon::cut_power() {
  if (!power_ || !power_->running()) return;
  for (const std::string& what : power_->cut(draw_)) {
    scene_.record.violation("the journal of power cuts: " + what);
  }
  scene_.record.count("power cuts");
}

void PatientDaemon::start_with_power(bool with_cut) {
  cut_power();
  // Often while it starts, or soon; now and then late enough for all to be in the WAL.
  const int64_t most = draw_.chance(0.3) ? 60 : draw_.chance(0.5) ? 800 : 6000;
  test::ChildOptions options;
  options.environment = power_->begin(with_cut ? draw_.between(1, most) : 0);
  scene_.record.count("daemon starts");
  try {
    process_.start(options);
  } catch (const Error& error) {
    if (!with_cut) throw Error("gnomond did not start after a power cut: " + log_end(error));
    process_.kill();
    scene_.record.count("daemon died while it started");
    start_with_power(false);
    return;
  }
  scene_.move_to(process_.port());
}

std::string PatientDaemon::backup_problem() const {
  if (backup_.empty() || std::filesystem::exists(files_ / "backups" / backup_)) return "";
  int newer = 0;
  for (const auto& entry : std::filesystem::directory_iterator(files_ / "backups")) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".sqlite") && name > backup_) ++newer;
  }
  return newer >= kBackupsKept ? "" : "the backup " + backup_ + " was acknowledged and is gone";
}

void PatientDaemon::start(bool with_failpoints) {
  if (power_) return start_with_power(with_failpoints);
  std::string failpoints = with_failpoints ? failpoints_of(fault_, draw_) : "";
  if (fault_ == Fault::kClock) {
    failpoints = "wall_clock=offset:" + (files_ / "clock").string();
  }
  test::ChildOptions options;
  if (!failpoints.empty()) options.environment = {{"GNOMON_FAILPOINTS", failpoints}};
#ifndef __SANITIZE_ADDRESS__  // whose own library must be the first
  if (fault_ == Fault::kDisk) {
    options.environment.emplace_back("LD_PRELOAD", GNOMON_FAILING_CALLS);
    options.environment.emplace_back("GNOMON_FAILING_CALLS", (files_ / "calls").string());
  }
#endif
  scene_.record.count("daemon starts");
  try {
    process_.start(options);
  } catch (const Error& error) {
    if (failpoints.empty() || fault_ == Fault::kClock) {
      throw Error("gnomond did not start; its log ends so: " + log_end(error));
    }
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
    // Cut on its way out, where that is the fault.
    if (status == -SIGKILL && power_) return cut_power();
    scene_.record.violation(fmt::format("SIGTERM ended the daemon with status {}", status));
  }
  cut_power();
}

void PatientDaemon::limit_files(bool limited) {
  rlimit limit{};
  if (::prlimit(process_.pid(), RLIMIT_FSIZE, nullptr, &limit) != 0) return;
  limit.rlim_cur = limited ? 4096 : limit.rlim_max;
  ::prlimit(process_.pid(), RLIMIT_FSIZE, &limit, nullptr);
}

void PatientDaemon::break_disk() {
  if (disk_) {
    disk_->leave_free(draw_.between(0, 16) * 4096);
    return;
  }
  if (draw_.chance(0.3)) {
    limit_files(true);
    return;
  }
  calls_->calls_before = draw_.between(0, 20);
  calls_->error = draw_.chance(0.5) ? EIO : ENOSPC;
}

void PatientDaemon::mend_disk() {
  if (disk_) {
    disk_->make_room();
    return;
  }
  limit_files(false);
  calls_->error = 0;
  scene_.record.count("writes and syncs that failed", calls_->failed.exchange(0));
}

void PatientDaemon::set_clock_offset(int64_t seconds) {
  write_file_atomically(files_ / "clock", fmt::format("{}", seconds));
}

}  // namespace gnomon::robustness
