// Backups of the ledger while the daemon runs: when somebody asks for one, and from time to time.
// Each is made and checked on a thread of its own that gives way to everything else.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "controller/metrics/metrics.h"
#include "controller/supervisor/change_notifier.h"
#include "protocol/settings.h"
#include "storage/ledger.h"
#include "storage/ledger_backup.h"

namespace gnomon {

struct BackupSettings {
  std::string folder;
  double every_seconds = 0;
  int64_t keep = 7;

  template <class Visitor>
  static void describe(Visitor&& v) {
    using S = BackupSettings;
    v("folder", &S::folder,
      Setting{.file = true,
              .accepted = "a folder",
              .help = "Folder for backups; empty: none, not even on request."});
    v("every_seconds", &S::every_seconds,
      Setting{.range = rules::kSeconds, .help = "Interval; 0: on request only."});
    v("keep", &S::keep,
      Setting{.range = {0, 1 << 20}, .unit = "backups", .help = "Newest backups to keep; 0: all."});
  }
  bool operator==(const BackupSettings&) const = default;
};

class Backups {
 public:
  struct Outcome {
    int64_t number = 0;
    BackupReport report;
    std::exception_ptr error;  // null when it is good
  };

  // `now` in seconds since the epoch. The newest backup in the folder says when the next is due.
  Backups(const Ledger& ledger, Metrics& metrics, BackupSettings settings,
          std::function<double()> now);
  // Gives up the one that is being made.
  ~Backups();
  Backups(const Backups&) = delete;
  Backups& operator=(const Backups&) = delete;

  void configure(const BackupSettings& settings);

  // Begins one; returns its number. Throws HttpError (409) when one is being made or no folder is
  // configured.
  int64_t start();
  // How a backup ended, until a newer one has; ended() notifies when one ends.
  std::optional<Outcome> outcome(int64_t number) const;
  ChangeNotifier& ended() { return ended_; }

  // Begins one when it is due. Never throws: what fails is logged and tried again.
  void keep_time();

 private:
  void make(int64_t number, const BackupSettings& settings);
  void note_outcome(const Outcome& outcome, const BackupSettings& settings);
  void look_for_newest();

  const Ledger& ledger_;
  Metrics& metrics_;
  std::function<double()> now_;
  ChangeNotifier ended_;
  mutable std::mutex mutex_;
  BackupSettings settings_;
  double next_ = 0;  // seconds since the epoch
  int64_t number_ = 0;
  bool running_ = false;
  std::optional<Outcome> outcome_;
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

}  // namespace gnomon
