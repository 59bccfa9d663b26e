// The verifier's life: ask the controller for a replay, run it, answer, ask again. Every call
// carries the lease's fencing token, so an answer that comes too late is refused and does no harm.
#pragma once

#include <spdlog/logger.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>

#include "protocol/backoff.h"
#include "protocol/client.h"
#include "protocol/records.h"
#include "trainer/replay.h"
#include "trainer/shutdown.h"

namespace gnomon {

struct WorkerOptions {
  ClientOptions controller;
  std::string name;  // unique per process
  int threads =
      0;  // 0: as many as the checkpoint's run had, which `same` replays need to give the same bits
  std::optional<Device> device = {};  // nothing: the run's
  Labels labels = {};                 // besides "host"; free of errors (protocol/labels.h)
  std::vector<std::filesystem::path> roots = {};  // of what it may read; empty: everything
  bool once = false;                              // end after one lease
  std::chrono::seconds poll = std::chrono::seconds(30);
  std::chrono::milliseconds backoff_first = std::chrono::milliseconds(100);
  std::chrono::milliseconds backoff_longest = std::chrono::seconds(10);
};

class Worker {
 public:
  // The references, and `ranks`, must outlive the worker. Of several ranks this one, which must be
  // rank 0, holds the leases. Throws ConfigError as HttpClient does.
  Worker(WorkerOptions options, Shutdown& shutdown, spdlog::logger& log,
         EngineRanks* ranks = nullptr);

  // Until a shutdown is requested (the replay at hand is finished and answered first) or, with
  // `once`, a lease is done. Returns the number of replays that were completed.
  int64_t run();

  // From any thread: makes a waiting long poll end. Call it after requesting the shutdown.
  void wake();

 private:
  std::optional<Lease> ask();
  void pause(const Error& error, bool away);
  enum class Done { kCompleted, kFailed, kLeft };  // kFailed: another try may help
  Done work(const Lease& lease);
  bool answer(const Lease& lease, const std::string& what, const std::string& body);

  WorkerOptions options_;
  Shutdown& shutdown_;
  spdlog::logger& log_;
  HttpClient client_;
  Backoff backoff_;
  Backoff token_backoff_{std::chrono::seconds(1), std::chrono::seconds(30)};
  Backoff failure_backoff_;  // a storage that is away fails one replay after the other
  Replayer replayer_;
  LeaseRequest request_;
  std::atomic<bool> asking_{false};
};

}  // namespace gnomon
