// The daemon of a history: it is started again whenever it has died, with the failpoints that the
// history's fault wants, and brought to a calm end.
#pragma once

#include <csignal>
#include <memory>
#include <vector>

#include "tests/robustness/endpoint.h"
#include "tests/robustness/failing_calls.h"
#include "tests/robustness/faults.h"
#include "tests/robustness/hook.h"
#include "tests/robustness/isolation.h"
#include "tests/robustness/power_cuts.h"
#include "tests/support/daemon_process.h"

namespace gnomon::robustness {

class PatientDaemon {
 public:
  // It tells `hooks` what happens.
  PatientDaemon(Scene& scene, Fault fault, Draw& draw, double lease_ttl_seconds,
                const std::vector<std::unique_ptr<Hook>>& hooks);
  ~PatientDaemon();
  PatientDaemon(const PatientDaemon&) = delete;
  PatientDaemon& operator=(const PatientDaemon&) = delete;

  // With failpoints, or without; again without when it died on the way.
  void start(bool with_failpoints);
  void kill();
  bool running();
  void terminate();
  // Goes on with one that stopped at a failpoint.
  void wake() { process_.signal(SIGCONT); }
  void freeze() { process_.signal(SIGSTOP); }
  // The disk is as it should be, or not: fault full leaves next to nothing free; else writes beyond
  // a file size fail, or some writes and syncs do, with ENOSPC or EIO.
  void break_disk();
  void mend_disk();
  void set_clock_offset(int64_t seconds);
  // For fault power: a backup of this name was acknowledged.
  void note_backup(const std::string& name) { backup_ = name; }
  // What was acknowledged last, or enough newer ones: empty. Otherwise what is wrong.
  std::string backup_problem() const;

  test::DaemonProcess& process() { return process_; }
  const std::filesystem::path& folder() const { return files_.path(); }

 private:
  void limit_files(bool limited);
  void start_with_power(bool with_cut);
  void cut_power();

  Scene& scene_;
  Fault fault_;
  Draw& draw_;
  test::TemporaryDirectory
      files_;            // configuration, policy, backups, the clock's offset, failing calls
  FailingCalls* calls_;  // shared with the daemon
  test::DaemonProcess process_;
  std::unique_ptr<SmallDisk> disk_;   // fault full: holds the ledger
  std::unique_ptr<PowerCuts> power_;  // fault power
  std::string backup_;
};

}  // namespace gnomon::robustness
