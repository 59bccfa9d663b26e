#include "verifier/worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/host.h"
#include "base/wall_clock.h"
#include "kernels/devices.h"
#include "protocol/json.h"
#include "protocol/text.h"
#include "storage/checkpoint_manifest.h"
#include "trainer/engine/engine_ranks.h"
#include "trainer/engine/fingerprint.h"
#include "trainer/lease_keeper.h"

namespace gnomon {
namespace {

// Once the end is requested, so that it can be seen soon.
constexpr std::chrono::milliseconds kPauseAtEnd = std::chrono::seconds(1);

// Describes what a replay will most likely run on; each result has a fingerprint of its own.
Fingerprint fingerprint_of(const ReplayDevice& on, EngineRanks* ranks) {
  const Device there = device_is_there(Device::kCuda) ? Device::kCuda : Device::kCpu;
  const Device device = on.device.value_or(there);
  const int threads = on.threads > 0 ? on.threads : 1;
  if (ranks != nullptr) return fingerprint_of_ranks(*ranks, device_name(device), threads);
  return process_fingerprint(*backend_makers(device).bf16(threads));
}

// A label "host" of its operator's counts more: in a container the host's name says little.
LeaseRequest request_of(const WorkerOptions& options, EngineRanks* ranks) {
  LeaseRequest request{options.name, fingerprint_of({options.threads, options.device}, ranks)};
  request.labels = options.labels;
  request.labels.try_emplace("host", host_name().substr(0, kLabelValueMax));
  request.can.arms.assign(kArms.begin(), kArms.end());
  std::erase(request.can.arms, "eager");  // nothing of the engine is compiled as it runs
  request.can.checkpoint_formats = {kOwnFormat};
  request.can.frameworks = {kOwnFramework};
  return request;
}

// A file, or a folder without a manifest, is no checkpoint of ours; who wrote it may have verifiers
// for it.
bool is_foreign(const std::string& uri) {
  const std::filesystem::path path(uri);
  std::error_code error;  // what cannot be looked at now may be ours
  if (!std::filesystem::exists(path, error)) return false;
  if (std::filesystem::is_empty(path, error) || error) return false;
  return !std::filesystem::exists(path / kManifestFile, error) && !error;
}

}  // namespace

Worker::Worker(WorkerOptions options, Shutdown& shutdown, spdlog::logger& log, EngineRanks* ranks)
    : options_(std::move(options)),
      shutdown_(shutdown),
      log_(log),
      client_(options_.controller),
      backoff_(options_.backoff_first, options_.backoff_longest),
      failure_backoff_(10 * options_.backoff_first, 3 * options_.backoff_longest),
      replayer_({options_.threads, options_.device}, ranks, options_.roots),
      request_(request_of(options_, ranks)) {}

void Worker::wake() {
  if (asking_) client_.cancel();
}

int64_t Worker::run() {
  int64_t completed = 0;
  bool away = false;
  while (true) {
    asking_ = true;  // before the look at the shutdown, so that wake() cannot come too early
    if (shutdown_.requested()) break;
    std::optional<Lease> lease;
    try {
      lease = ask();
      asking_ = false;
      if (away) log_.info("the controller is back");
      away = false;
      backoff_.reset();
      token_backoff_.reset();
    } catch (const Error& error) {
      if (shutdown_.requested()) break;
      pause(error, away);
      away = true;
      continue;
    }
    if (!lease) continue;
    const Done done = work(*lease);
    completed += done == Done::kCompleted;
    if (options_.once) break;
    if (done == Done::kCompleted) failure_backoff_.reset();
    if (done == Done::kFailed) shutdown_.wait_for(failure_backoff_.next());
  }
  return completed;
}

// Before the next try. A token that is refused may be replaced, but not so soon.
void Worker::pause(const Error& error, bool away) {
  const auto* answer = dynamic_cast<const ApiError*>(&error);
  const bool refused = answer != nullptr && answer->refuses_token();
  const auto time = refused ? token_backoff_.next() : backoff_.next(asked_pause(error));
  if (refused) {
    log_.warn("{}; trying again in {} s", error.what(),
              std::chrono::ceil<std::chrono::seconds>(time).count());
  } else if (!away) {
    log_.warn("{}", error.what());
  }
  shutdown_.wait_for(time);
}

// Nothing when there is no work within the poll's time.
std::optional<Lease> Worker::ask() {
  constexpr std::chrono::seconds kSlack(10);
  const HttpResponse response =
      client_.checked("POST", fmt::format("/v1/leases?wait={}", options_.poll.count()),
                      to_json(request_), options_.poll + kSlack);
  if (response.status == 204 || response.body.empty()) return std::nullopt;
  return from_answer<Lease>(response.body);
}

Worker::Done Worker::work(const Lease& lease) {
  const ReplayTask& task = lease.task;
  log_.info("lease {}: {} window {}, arm {} ({}), {} steps from step {}", lease.lease, task.run,
            task.window, task.arm, task.purpose, task.steps, task.start_step);
  std::optional<LeaseKeeper> keeper;
  const auto lost = [&keeper] { return keeper && keeper->lost(); };
  Done done = Done::kCompleted;
  std::string body;
  try {
    keeper.emplace(options_.controller, lease, log_);
    ReplayResult result = replayer_.run(replay_request(task), [&](int64_t steps) {
      keeper->set_steps_done(steps);
      return !lost();
    });
    result.token = lease.token;
    result.time = now_seconds();
    log_.info("lease {}: {} steps in {:.1f} s, evaluations {:.1f} s", lease.lease,
              result.steps.size(), result.replay_seconds, result.eval_seconds);
    body = to_json(result);
  } catch (const std::exception& error) {
    if (!lost()) log_.error("lease {}: {}", lease.lease, error.what());
    // Data, a device or a plan that do not fit this one; a missing checkpoint may come, and without
    // a keeper it is the token's file or a certificate that is being replaced.
    const bool misfit = keeper && dynamic_cast<const ConfigError*>(&error) != nullptr;
    const bool unsupported = misfit || is_foreign(task.checkpoint_uri);
    done = unsupported ? Done::kLeft : Done::kFailed;
    body = to_json(LeaseFailure{.token = lease.token,
                                .reason = shortened(error.what(), rules::kSentence),
                                .unsupported = unsupported});
  }
  if (lost()) {
    log_.warn("lease {}: abandoned", lease.lease);
    return Done::kLeft;
  }
  const bool taken = answer(lease, done == Done::kCompleted ? "complete" : "fail", body);
  return taken || done != Done::kCompleted ? done : Done::kLeft;
}

// Returns whether the controller took it. Tries until it has taken or refused it, or fails at it
// again and again. A shutdown ends the trying once the lease must have run out.
bool Worker::answer(const Lease& lease, const std::string& what, const std::string& body) {
  const std::string target = fmt::format("/v1/leases/{}/{}", lease.lease, what);
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(lease.ttl_seconds);
  int errors = 0;
  while (!shutdown_.requested() || std::chrono::steady_clock::now() < deadline) {
    std::chrono::milliseconds asked{0};
    try {
      client_.checked("POST", target, body, std::chrono::seconds(30));
      backoff_.reset();
      return true;
    } catch (const ApiError& error) {
      const bool passes = may_pass(error.status());
      if (!passes && (error.status() < 500 || ++errors >= kServerErrorsMax)) {
        log_.warn("lease {}: the answer was refused: {}", lease.lease, error.what());
        return false;
      }
      asked = error.refuses_token() ? token_backoff_.next() : asked_pause(error);
      log_.warn("{}", error.what());
    } catch (const ConnectionError& error) {
      log_.warn("{}; trying again", error.what());
    }
    const auto time = backoff_.next(asked);
    if (shutdown_.wait_for(time)) std::this_thread::sleep_for(std::min(time, kPauseAtEnd));
  }
  log_.error("lease {}: the controller could not be reached; its replay will be leased again",
             lease.lease);
  return false;
}

}  // namespace gnomon
