// Everything the daemon consists of, in the order in which it comes to be: what cannot be had ends
// the start before the ledger is touched, or leaves no trace of it.
#pragma once

#include <array>
#include <atomic>
#include <csignal>
#include <memory>
#include <string>

#include "base/slewed_clock.h"
#include "controller/api/server.h"
#include "controller/daemon/bounded_posts.h"
#include "controller/daemon/daemon_config.h"
#include "controller/daemon/live_config.h"
#include "controller/daemon/served_certificate.h"

namespace gnomon {

// End the daemon (SIGTERM, SIGINT) or have it read its configuration again (SIGHUP). They are to be
// blocked before there is a Daemon (block_signals); until it serves, and after, they wait.
inline constexpr std::array<int, 3> kDaemonSignals = {SIGTERM, SIGINT, SIGHUP};

class Daemon {
 public:
  // `read` gives the configuration anew when it is asked to be read again (LiveConfig). Writes the
  // port into `port_file`, unless that is empty. Throws ConfigError, LedgerError, SystemError.
  Daemon(const DaemonConfig& config, std::function<DaemonConfig()> read,
         const std::string& port_file);
  ~Daemon();

  // Until SIGTERM or SIGINT. SIGHUP reads the configuration again. False when the ledger was lost
  // meanwhile, so that what was acknowledged may not be there.
  bool serve();

 private:
  // All that needs the ledger.
  void begin(const DaemonConfig& config, const std::string& port_file);
  void expire_leases();
  void keep_time();
  void watch_wall_clock();
  void watch_ledger();
  void set_integrity(const char* state);  // as in DaemonNumbers
  void save_states();
  void look_at_tokens();
  std::string status() const;
  void reload();
  void notify_service_manager();
  void check_pages();

  // Times what is decided and recorded: deadlines, ages, times of rows. What others measure against
  // a clock of their own (tokens, certificates, notifications) follows the wall clock.
  SlewedClock clock_;
  bool clock_jumped_ = false;  // and it was said
  Metrics metrics_;
  LiveConfig config_;
  Authenticator authenticator_;
  uint64_t revocations_ = 0;  // of the authenticator, when waiting connections were last woken
  ReplayQueue queue_;         // replays that wait for a verifier
  ChangeNotifiers change_notifiers_;
  notify::Outbox outbox_;
  RunCache runs_;
  Leases leases_;
  Retention retention_;
  std::unique_ptr<ServedCertificate> certificate_;  // null: no TLS
  std::unique_ptr<Services> services_;
  std::unique_ptr<Router> router_;
  Server server_;
  std::atomic<bool> ledger_lost_ = false;  // and it was said
  BoundedPosts expiries_{16};              // of leases, ten times a second
  BoundedPosts ticks_{128};                // of runs, once a second
  std::unique_ptr<Ledger> ledger_;         // its threads work with the others until they are joined
  std::unique_ptr<notify::Notifier> notifier_;
  std::unique_ptr<Backups> backups_;
  std::unique_ptr<BackgroundCheck> integrity_;
};

}  // namespace gnomon
