#include "controller/daemon/daemon.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>

#include "base/errors.h"
#include "base/failpoint.h"
#include "base/files.h"
#include "base/signals.h"
#include "base/version.h"
#include "base/wall_clock.h"
#include "controller/daemon/descriptors.h"
#include "controller/daemon/log_setup.h"
#include "controller/daemon/named_files.h"
#include "controller/daemon/service_manager.h"
#include "controller/daemon/write_trouble.h"
#include "controller/supervisor/notices.h"

namespace gnomon {
namespace {

// From here on a difference is no drift that the time service mends.
constexpr double kClockJumpSeconds = 5;

double wall_seconds() { return now_seconds() + failpoint::wall_clock_offset(); }

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void log_failure(const std::string& what, std::exception_ptr error) {
  try {
    if (error) {
      std::rethrow_exception(error);
    }
  } catch (const std::exception& failure) {
    spdlog::warn("{}: {}", what, failure.what());
  }
}

// The port is known only later; where it will be written must be fit for it before anything is
// made.
void check_port_file(const std::string& port_file) {
  if (port_file.empty()) {
    return;
  }
  std::filesystem::path folder = std::filesystem::absolute(port_file).parent_path();
  std::error_code unreadable;
  if (!std::filesystem::is_directory(folder, unreadable) || ::access(folder.c_str(), W_OK) != 0 ||
      std::filesystem::is_directory(port_file, unreadable)) {
    throw ConfigError("command line", 0, "--port-file", port_file,
                      "a file in a folder that can be written");
  }
}

std::chrono::seconds whole_seconds(double seconds) {
  return std::chrono::ceil<std::chrono::seconds>(std::chrono::duration<double>(seconds));
}

ServerOptions server_options(const DaemonConfig& config, const ServedCertificate* certificate) {
  reserve_descriptors(config.limits.connections,
                      config.file.empty() ? "command line" : config.file);
  ServerOptions options = parse_listen(config.listen);
  options.threads = config.threads;
  options.connections_max = static_cast<size_t>(config.limits.connections);
  options.transfer_max = static_cast<size_t>(config.limits.transfer_mib) << 20;
  options.read_timeout = whole_seconds(config.limits.read_seconds);
  options.idle_timeout = whole_seconds(config.limits.idle_seconds);
  options.drain_timeout = whole_seconds(config.limits.drain_seconds);
  options.stop_timeout = whole_seconds(config.limits.stop_seconds);
  if (certificate != nullptr) options.tls = [certificate] { return certificate->context(); };
  return options;
}

LedgerOptions ledger_options(const DaemonConfig& config, Metrics& metrics) {
  LedgerOptions options;
  options.file = config.ledger;
  options.queue_max = static_cast<size_t>(config.limits.queued_writes);
  options.on_commit = [&metrics](double seconds) {
    metrics.update([&](DaemonNumbers& n) { n.commit_seconds.observe(seconds); });
  };
  options.on_outcome = [trouble = std::make_shared<WriteTrouble>()](const std::string& why) {
    const WriteTrouble::Line line = trouble->outcome(why, steady_seconds());
    if (!line.text.empty())
      spdlog::log(line.well ? spdlog::level::info : spdlog::level::err, line.text);
  };
  return options;
}

}  // namespace

Daemon::Daemon(const DaemonConfig& config, std::function<DaemonConfig()> read,
               const std::string& port_file)
    : clock_(wall_seconds, steady_seconds),
      config_(config, std::move(read), metrics_, wall_seconds),
      authenticator_(config.auth, wall_seconds, steady_seconds),
      outbox_(metrics_),
      runs_(
          metrics_, queue_, change_notifiers_,
          {read_default_policy(config), config.series_keep_seconds, config.checkpoints.roots,
           &outbox_},
          [this] { return clock_.now(); }, steady_seconds),
      leases_(runs_, metrics_, queue_),
      retention_(
          metrics_, config.retention, [this] { return clock_.now(); }, steady_seconds),
      certificate_(config.tls.files.certificate.empty()
                       ? nullptr
                       : std::make_unique<ServedCertificate>(config, metrics_)),
      server_((check_port_file(port_file), server_options(config, certificate_.get()))) {
  ledger_ = std::make_unique<Ledger>(ledger_options(config, metrics_));
  try {
    begin(config, port_file);
  } catch (...) {
    ledger_->leave_no_trace();
    throw;
  }
}

void Daemon::begin(const DaemonConfig& config, const std::string& port_file) {
  if (ledger_->is_new()) {
    spdlog::info("new ledger created at {}", ledger_->file().string());
  }
  if (ledger_->dropped_wal()) {
    spdlog::warn(
        "the write-ahead log beside {} had a header that was written in part; all of it was in the "
        "ledger, so it was emptied",
        config.ledger);
  }
  ledger_->read_unhurried([this](Connection& connection) { runs_.restore(connection); });
  notifier_ = std::make_unique<notify::Notifier>(
      *ledger_, outbox_, metrics_, config.notifications, [this] { return clock_.now(); },
      wall_seconds, steady_seconds);
  ledger_->write([this](LedgerTransaction& transaction) {
    runs_.save_rebuilt(transaction);
    leases_.restore(transaction);
  });
  backups_ = std::make_unique<Backups>(*ledger_, metrics_, config.backup, wall_seconds);
  metrics_.on_scrape([this] {
    runs_.show_verdicts();
    const ClientConnections::Counts connections = server_.connections();
    // Asked before the lock of the numbers is taken: those who answer have locks of their own, and
    // a disk may be slow.
    const auto queue_length = static_cast<int64_t>(ledger_->queue_length());
    const int64_t bytes = ledger_->bytes();
    const int64_t wal_bytes = ledger_->wal_bytes();
    const auto held = static_cast<int64_t>(server_.bytes_held());
    const int64_t queued = queue_.queued();
    const int64_t set_aside = std::ssize(runs_.set_aside().all());
    metrics_.update([&](DaemonNumbers& n) {
      n.ledger_queue_length = queue_length;
      n.ledger_bytes = bytes;
      n.wal_bytes = wal_bytes;
      n.connections_known = static_cast<int64_t>(connections.open - connections.strangers);
      n.connections_strangers = static_cast<int64_t>(connections.strangers);
      n.transfer_bytes = held;
      n.replays_queued = queued;
      n.runs_set_aside = set_aside;
    });
  });
  if (!port_file.empty()) {
    write_file_atomically(port_file, fmt::format("{}\n", server_.port()));
  }
  config_.on_reload([this](const DaemonConfig& wanted) {
    set_log_level(wanted.log.level);
    for (const std::string& sentence : doubtful_files(wanted)) spdlog::warn("{}", sentence);
    try {
      runs_.set_default_policy(read_default_policy(wanted));
    } catch (const ConfigError& error) {  // changed again since the file was checked
      spdlog::error("the policy was not read again, the last good one stays: {}", error.what());
    }
    backups_->configure(wanted.backup);
    retention_.configure(wanted.retention);
    notifier_->configure(wanted.notifications);
    if (certificate_) certificate_->configure(wanted);
    // Tokens that come or go altogether wait for a restart, as check-config says.
    if (wanted.auth.tokens.empty() == authenticator_.closed()) return;
    try {
      authenticator_.configure(wanted.auth);
    } catch (const ConfigError& error) {  // changed again since the file was checked
      spdlog::error("the tokens were not read again, the last good ones stay: {}", error.what());
    }
  });
}

Daemon::~Daemon() = default;

// Posts the end of leases whose time is over, a few at a time. What the ledger cannot take now, the
// next look posts.
void Daemon::expire_leases() {
  if (ledger_lost_) return;
  for (int64_t lease : leases_.held().overdue()) {
    const bool accepted = expiries_.post(
        *ledger_, lease,
        [this, lease](LedgerTransaction& transaction) { leases_.expire(transaction, lease); },
        [this, lease](std::exception_ptr) {
          spdlog::warn("lease {} is over but the ledger could not record it", lease);
          leases_.held().put_off_expiry(lease);
        });
    if (!accepted) return;
  }
}

// Posts what has waited for its time: deadlines of runs, a few at a time. What the ledger cannot
// take now, the next look posts.
void Daemon::keep_time() {
  if (ledger_lost_) return;
  for (int64_t run : runs_.deadlines().due(runs_.now())) {
    const bool accepted = ticks_.post(
        *ledger_, run,
        [this, run](LedgerTransaction& transaction) { runs_.tick(transaction, run); },
        [run](std::exception_ptr error) {
          log_failure(fmt::format("what was due in {} could not be recorded, and is tried again",
                                  run_name(run)),
                      error);
        });
    if (!accepted) break;
  }
  for (const SetAsideRuns::Entry& entry : runs_.set_aside().newcomers()) {
    const bool accepted = ledger_->post(
        [this, entry](LedgerTransaction& transaction) {
          report_set_aside({runs_, transaction}, entry);
        },
        [this, entry](std::exception_ptr error) {
          log_failure(fmt::format("no notice that {} is set aside", run_name(entry.run)), error);
          if (error) runs_.set_aside().retry_notice(entry.run);
        });
    if (!accepted) runs_.set_aside().retry_notice(entry.run);
  }
  leases_.watch_unschedulable(*ledger_);
  backups_->keep_time();
}

void Daemon::watch_wall_clock() {
  const double ahead = clock_.wall_ahead();
  const bool jumped = std::abs(ahead) > kClockJumpSeconds;
  if (jumped && !clock_jumped_) {
    spdlog::warn(
        "the machine's clock was set {:.0f} s {}: deadlines and records go on at their pace and "
        "follow it by a tenth of the time that passes",
        std::abs(ahead), ahead > 0 ? "ahead" : "back");
  } else if (!jumped && clock_jumped_) {
    spdlog::info("deadlines and records agree with the machine's clock again");
  }
  clock_jumped_ = jumped;
}

void Daemon::set_integrity(const char* state) {
  metrics_.update([&](DaemonNumbers& n) { n.integrity = state; });
}

// Looked at before each group of writes too; here also while nobody writes.
void Daemon::watch_ledger() {
  const std::string lost = ledger_->lost();
  if (ledger_lost_.exchange(!lost.empty()) == !lost.empty()) return;
  if (!lost.empty()) {
    set_integrity("lost");
    spdlog::error("nothing more is recorded: {}; docs/runbook.md says what can be saved", lost);
    return;
  }
  const bool damaged = integrity_->state() == BackgroundCheck::State::kFailed;
  const bool pending = integrity_->state() == BackgroundCheck::State::kPending;
  set_integrity(damaged ? "failed" : pending ? "pending" : "ok");
  spdlog::info("the ledger {} is back in its place and is written again", ledger_->file().string());
}

// Reads all of the ledger beside everything else: a large one would keep the start waiting.
void Daemon::check_pages() {
  BackgroundCheck::Hooks hooks;
  hooks.pause = [this] { return ledger_->wal_is_long(); };
  hooks.on_end = [this](BackgroundCheck::State state, const std::string& problem) {
    if (state == BackgroundCheck::State::kOk) {
      if (!ledger_lost_) set_integrity("ok");
      spdlog::info("every table of the ledger has been read and is whole");
      return;
    }
    set_integrity("failed");
    spdlog::error(
        "the ledger is damaged: {}. gnomond still writes it and may lose more: stop the daemon "
        "and restore a backup (gnomon ledger restore); docs/runbook.md says how",
        problem);
  };
  integrity_ = std::make_unique<BackgroundCheck>(ledger_->file(), std::move(hooks));
}

std::string Daemon::status() const {
  return fmt::format("listens on {}, port {}", config_.get()->listen, server_.port());
}

void Daemon::reload() {
  ServiceManager::reloading();
  const bool taken = config_.reload();
  ServiceManager::ready(taken ? status() : status() + "; the configuration was not read again");
}

void Daemon::notify_service_manager() {
  server_.on_stop([] { ServiceManager::stopping(); });
  // A sign of life has gone through the server's threads and the ledger's writer. Without a row
  // it touches no disk, so that a full one, which passes, does not end the daemon.
  if (const auto interval = ServiceManager::watchdog_interval()) {
    server_.every(*interval / 2, [this] {  // one may be refused by a full queue
      [[maybe_unused]] const bool accepted = ledger_->post(
          [](LedgerTransaction&) {}, [](std::exception_ptr) { ServiceManager::alive(); });
    });
  }
  ServiceManager::ready(status());
}

// A start goes on from a killed daemon's ledger as well; this spares it the time, and another
// version the question what it thinks of the newest steps.
void Daemon::save_states() {
  try {
    ledger_->write([this](LedgerTransaction& transaction) { runs_.save_all(transaction); });
  } catch (const Error& error) {
    spdlog::warn("the newest states were not written down: {}", error.what());
  }
}

void Daemon::look_at_tokens() {
  authenticator_.reload_changed_tokens();
  metrics_.update(
      [current = authenticator_.current()](DaemonNumbers& n) { n.tokens_current = current; });
  if (authenticator_.revocations() == revocations_) return;
  revocations_ = authenticator_.revocations();
  server_.look_at_tokens();
}

bool Daemon::serve() {
  const std::shared_ptr<const DaemonConfig> config = config_.get();
  services_.reset(new Services{*ledger_, runs_, leases_, metrics_, queue_, change_notifiers_,
                               authenticator_, config->web_root});
  check_pages();
  services_->backups = backups_.get();
  services_->integrity = integrity_.get();
  router_ = std::make_unique<Router>(all_routes(*services_), page_route(*services_));
  server_.every(std::chrono::milliseconds(100), [this] {
    expire_leases();
    if (!ledger_lost_ && retention_.due()) retention_.post(*ledger_);
    if (certificate_) certificate_->look(steady_seconds());
  });
  server_.every(std::chrono::seconds(1), [this] {
    look_at_tokens();
    watch_wall_clock();
    watch_ledger();
    keep_time();
  });
  notify_service_manager();
  spdlog::info("gnomond {} ({}) listens on {}, port {}{}, ledger {}", kVersion, kRevision,
               config->listen, server_.port(), certificate_ ? " with TLS" : "", config->ledger);
  const SignalListener signals(kDaemonSignals, [this](int number) {
    number == SIGHUP ? server_.post([this] { reload(); }) : server_.stop();
  });
  server_.run(*services_, *router_);
  save_states();
  notifier_.reset();
  backups_.reset();
  services_->integrity = nullptr;
  integrity_.reset();
  // Before the server's coroutines: writes under way still point into them.
  const std::string lost = ledger_->lost();
  ledger_.reset();
  if (!lost.empty()) {
    spdlog::error("stopped; what was acknowledged last may be lost: {}", lost);
    return false;
  }
  spdlog::info("stopped; everything acknowledged is in {}", config->ledger);
  return true;
}

}  // namespace gnomon
