#include "controller/backups/backups.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <regex>
#include <vector>

#include "base/file_access.h"
#include "base/progress.h"
#include "controller/auth/http_error.h"
#include "storage/ledger_integrity.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;

constexpr double kAgainSeconds = 600;  // after one that failed, or sooner when they are more often
// While a copy is made the WAL cannot begin anew; beyond this it is given up.
constexpr int64_t kWalBytesMax = int64_t{1} << 30;

// What the log says of a backup that failed; `wait` until the next one.
std::string next_try(const BackupSettings& settings, double wait) {
  if (settings.every_seconds == 0) {
    return "none is tried until somebody asks (backup.every_seconds is 0)";
  }
  return fmt::format("the next try is in {}", format_duration(wait));
}

std::string name_at(double now) { return fmt::format("ledger-{}.sqlite", time_in_a_name(now)); }

// Those that were made here, in the order in which they were. What a clock that was ahead has named
// counts as the oldest.
std::vector<fs::path> backups_in(const std::string& folder, double now,
                                 const std::string& suffix = "") {
  const std::regex ours("ledger-\\d{8}T\\d{6}\\.\\d{3}Z\\.sqlite" + suffix);
  std::vector<fs::path> found;
  std::error_code unreadable;
  for (const auto& entry : fs::directory_iterator(folder, unreadable)) {
    if (std::regex_match(entry.path().filename().string(), ours)) found.push_back(entry.path());
  }
  std::ranges::sort(found, {}, [newest = name_at(now)](const fs::path& file) {
    return std::pair(file.filename().string() <= newest, file);
  });
  return found;
}

void keep_newest(const BackupSettings& settings, double now) {
  if (settings.keep == 0) return;
  std::vector<fs::path> backups = backups_in(settings.folder, now);
  for (size_t i = 0; i + static_cast<size_t>(settings.keep) < backups.size(); ++i) {
    std::error_code error;
    fs::remove(backups[i], error);
    if (error) spdlog::warn("the old backup {} stays: {}", backups[i].string(), error.message());
  }
}

}  // namespace

Backups::Backups(const Ledger& ledger, Metrics& metrics, BackupSettings settings,
                 std::function<double()> now)
    : ledger_(ledger), metrics_(metrics), now_(std::move(now)), settings_(std::move(settings)) {
  look_for_newest();
}

Backups::~Backups() {
  ending_ = true;
  if (thread_.joinable()) thread_.join();
}

// Only with the lock held, or while nobody else has this object.
void Backups::look_for_newest() {
  next_ = 0;
  const double now = now_();
  const std::vector<fs::path> there =
      settings_.folder.empty() ? std::vector<fs::path>() : backups_in(settings_.folder, now);
  if (there.empty() || there.back().filename() > name_at(now)) return;
  std::error_code error;
  const auto time = fs::last_write_time(there.back(), error);
  if (error) return;
  const auto age = std::chrono::duration<double>(fs::file_time_type::clock::now() - time).count();
  const double made = now - std::max(age, 0.0);
  metrics_.update([&](DaemonNumbers& n) { n.backup_made_at = made; });
  next_ = made + settings_.every_seconds;
}

void Backups::configure(const BackupSettings& settings) {
  const std::lock_guard lock(mutex_);
  if (settings == settings_) return;
  settings_ = settings;
  look_for_newest();
}

int64_t Backups::start() {
  const std::lock_guard lock(mutex_);
  if (settings_.folder.empty()) {
    throw HttpError(409, "No folder for backups", "the configuration names none",
                    "[backup] folder in gnomond's configuration; or gnomon ledger backup --ledger, "
                    "where the file can be reached");
  }
  if (running_) {
    throw HttpError(409, "A backup is being made", fmt::format("backup {} has not ended", number_),
                    "the same request when it has ended");
  }
  if (thread_.joinable()) thread_.join();
  thread_ =
      std::thread([this, number = number_ + 1, settings = settings_] { make(number, settings); });
  running_ = true;  // its end waits for the lock
  return ++number_;
}

std::optional<Backups::Outcome> Backups::outcome(int64_t number) const {
  const std::lock_guard lock(mutex_);
  return outcome_ && outcome_->number == number ? outcome_ : std::nullopt;
}

void Backups::make(int64_t number, const BackupSettings& settings) {
  give_way_to_others();
  Outcome outcome;
  outcome.number = number;
  std::atomic<bool> wal_is_too_long = false;
  try {
    // What its name leads to is another file then.
    if (const std::string lost = ledger_.lost(); !lost.empty()) throw LedgerLost(lost);
    const std::string why = why_not_writable(settings.folder);
    if (!why.empty()) throw Error(why + " (backup.folder)");
    for (const fs::path& left : backups_in(settings.folder, now_(), "\\.partial")) fs::remove(left);
    BackupOptions options;
    options.end_now = [&] {
      if (ledger_.wal_bytes() > kWalBytesMax) wal_is_too_long = true;
      return ending_ || wal_is_too_long;
    };
    outcome.report =
        back_up_ledger(ledger_.file(), fs::path(settings.folder) / name_at(now_()), options);
    keep_newest(settings, now_());
  } catch (...) {
    outcome.error = std::current_exception();
  }
  if (outcome.error && wal_is_too_long) {
    outcome.error = std::make_exception_ptr(
        Error(fmt::format("it was given up: meanwhile the write-ahead log, which cannot begin anew "
                          "while a copy is made, grew beyond {} MiB; it needs a faster disk or a "
                          "quieter hour",
                          kWalBytesMax >> 20)));
  }
  note_outcome(outcome, settings);
}

void Backups::note_outcome(const Outcome& outcome, const BackupSettings& settings) {
  double wait = settings.every_seconds;
  try {
    if (outcome.error) std::rethrow_exception(outcome.error);
    metrics_.update([&](DaemonNumbers& n) {
      n.backups["completed"] += 1;
      n.backup_made_at = now_();
    });
    spdlog::info("backup {}: {} bytes in {:.1f} s, audit head {}:{}", outcome.report.file.string(),
                 outcome.report.bytes, outcome.report.seconds, outcome.report.audit.last_id,
                 outcome.report.audit.head);
  } catch (const std::exception& failure) {
    wait = std::min(settings.every_seconds, kAgainSeconds);
    if (!ending_) {
      metrics_.update([](DaemonNumbers& n) { n.backups["failed"] += 1; });
      spdlog::error("no backup was made: {}; {}", failure.what(), next_try(settings, wait));
    }
  }
  {
    const std::lock_guard lock(mutex_);
    outcome_ = outcome;
    running_ = false;
    next_ = now_() + wait;
  }
  ended_.notify_all();
}

void Backups::keep_time() {
  {
    const std::lock_guard lock(mutex_);
    // One that is more than an interval away is due: the clock was set back.
    const double wait = next_ - now_();
    const bool due = wait <= 0 || wait > settings_.every_seconds;
    if (settings_.every_seconds == 0 || settings_.folder.empty() || running_ || !due) return;
  }
  try {
    start();
  } catch (const HttpError& faster) {  // somebody else began one
    spdlog::debug("no backup was begun: {}", faster.what());
  } catch (const std::exception& failure) {  // no thread is to be had
    metrics_.update([](DaemonNumbers& n) { n.backups["failed"] += 1; });
    const std::lock_guard lock(mutex_);
    const double wait = std::min(settings_.every_seconds, kAgainSeconds);
    next_ = now_() + wait;
    spdlog::error("no backup was begun: {}; {}", failure.what(), next_try(settings_, wait));
  }
}

}  // namespace gnomon
