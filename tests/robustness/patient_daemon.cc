#include "tests/robustness/patient_daemon.h"

#include <SQLiteCpp/Database.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "base/files.h"
#include "tests/robustness/story.h"

namespace gnomon::robustness {
namespace {

std::vector<std::string> arguments(const std::filesystem::path& folder, double lease_ttl_seconds,
                                   const std::vector<std::unique_ptr<Hook>>& hooks) {
  std::filesystem::create_directory(folder / "backups");
  std::string text = "[backup]\nfolder = \"backups\"\nkeep = 3\n";
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
}

PatientDaemon::~PatientDaemon() {
  process_.kill();
  ::munmap(calls_, sizeof(FailingCalls));
}

void PatientDaemon::put_old_ledger() const {
  SQLite::Database old(process_.ledger().string(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
  old.exec("PRAGMA journal_mode=WAL");
  old.exec(read_file(GNOMON_LEDGER_SCHEMA_V1));
  old.exec("PRAGMA application_id=0x476e6f6d; PRAGMA user_version=1");
}

void PatientDaemon::start(bool with_failpoints) {
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
    constexpr size_t kLogShown = 1500;
    const std::string log = error.what();
    if (failpoints.empty() || fault_ == Fault::kClock) {
      throw Error("gnomond did not start; its log ends so: " +
                  log.substr(log.size() - std::min(log.size(), kLogShown)));
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
    scene_.record.violation(fmt::format("SIGTERM ended the daemon with status {}", status));
  }
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
