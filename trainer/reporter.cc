#include "trainer/reporter.h"

#include <fmt/format.h>

#include "protocol/json.h"

namespace gnomon {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

void Contact::succeeded() {
  std::lock_guard lock(mutex_);
  away_since_.reset();
}

void Contact::failed() {
  std::lock_guard lock(mutex_);
  if (!away_since_) away_since_ = Clock::now();
}

double Contact::away_seconds() const {
  std::lock_guard lock(mutex_);
  return away_since_ ? std::chrono::duration<double>(Clock::now() - *away_since_).count() : 0;
}

Reporter::Reporter(ReporterOptions options, Spool& spool, Contact& contact, spdlog::logger& log)
    : options_(std::move(options)),
      spool_(spool),
      contact_(contact),
      log_(log),
      client_(options_.url),
      backoff_(options_.backoff_first, options_.backoff_longest),
      last_sync_(Clock::now()),
      thread_([this] { run(); }) {}

Reporter::~Reporter() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  spool_.wake();
  client_.cancel();
  thread_.join();
}

std::optional<std::string> Reporter::wait_for_run(std::chrono::milliseconds timeout) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return !run_.empty() || stopping_; });
  return run_.empty() ? std::nullopt : std::optional(run_);
}

std::optional<std::vector<std::string>> Reporter::protected_checkpoints() const {
  std::lock_guard lock(mutex_);
  return protected_;
}

// Returns whether to stop.
bool Reporter::wait(std::chrono::milliseconds duration) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, duration, [this] { return stopping_; });
}

void Reporter::run() {
  bool away = false;
  while (!wait(std::chrono::milliseconds(0))) {
    try {
      sync_if_due();
      if (run_.empty()) register_run();
      send_oldest();
      backoff_.reset();
      if (away) log_.info("the controller is back; {} records to send", spool_.records());
      away = false;
    } catch (const std::exception& error) {
      if (wait(std::chrono::milliseconds(0))) return;
      contact_.failed();
      if (!away) {
        log_.warn("{}; training goes on, reports wait in the spool", error.what());
      } else {
        log_.debug("{}", error.what());
      }
      away = true;
      sync_if_due();
      if (wait(backoff_.next())) return;
    }
  }
}

void Reporter::register_run() {
  const HttpResponse response =
      client_.checked("POST", "/v1/runs", to_json(options_.registration), options_.request_timeout);
  const auto registered = from_json<RunRegistered>(response.body);
  contact_.succeeded();
  {
    std::lock_guard lock(mutex_);
    run_ = registered.run;
  }
  changed_.notify_all();
  log_.info("registered at {} as {} (mode {})", options_.url, registered.run, registered.mode);
}

// Sends the oldest records, as many steps as stand together at once. Waits a moment when there is
// none.
void Reporter::send_oldest() {
  const std::vector<SpoolRecord> records =
      spool_.oldest(options_.batch_records_max, options_.batch_bytes_max);
  if (records.empty()) {
    spool_.wait_for_records(options_.sync_interval);
    return;
  }
  if (records.front().target == "steps") {
    const size_t sent = send_steps(records);
    spool_.acknowledge(records[sent - 1].number);
    return;
  }
  const SpoolRecord& record = records.front();
  if (record.target.empty()) {
    log_.error("{}; it cannot be reported", record.body);
    ++refused_;
  } else {
    post_or_drop(record, record.body);
  }
  spool_.acknowledge(record.number);
}

// Returns how many of `records`, from the first on, were steps and are done with.
size_t Reporter::send_steps(const std::vector<SpoolRecord>& records) {
  StepBatch batch;
  for (const SpoolRecord& record : records) {
    if (record.target != "steps") break;
    batch.steps.push_back(from_json<StepReport>(record.body));
  }
  try {
    post("steps", to_json(batch));
  } catch (const ApiError& error) {
    if (!is_refusal(error.status())) throw;
    // One bad step must not take the others with it.
    for (size_t i = 0; i < batch.steps.size(); ++i) {
      post_or_drop(records[i], to_json(StepBatch{{batch.steps[i]}}));
    }
  }
  return batch.steps.size();
}

void Reporter::post_or_drop(const SpoolRecord& record, const std::string& body) {
  try {
    post(record.target, body);
  } catch (const ApiError& error) {
    if (!is_refusal(error.status())) throw;
    ++refused_;
    log_.error("the controller refused a report and it is dropped: {}; the report was {}",
               error.what(), record.body);
  }
}

// Whether sending again cannot help. An unknown run may be a controller with a new ledger: the
// first 404 makes us register again, a second one counts.
bool Reporter::is_refusal(int status) {
  if (status == 404 && !registered_again_) {
    log_.warn("{} is unknown to the controller; registering again", run_);
    registered_again_ = true;
    std::lock_guard lock(mutex_);
    run_.clear();
    return false;
  }
  const bool refused = status >= 400 && status < 500 && status != 408 && status != 429;
  if (refused) contact_.succeeded();
  return refused;
}

void Reporter::post(const std::string& target, const std::string& body) {
  const std::string path = fmt::format("/v1/runs/{}/{}", run_, target);
  const HttpResponse response = client_.checked("POST", path, body, options_.request_timeout);
  contact_.succeeded();
  registered_again_ = false;
  if (target.starts_with("directives/")) return;
  auto ack = from_json<ReportAck>(response.body);
  std::lock_guard lock(mutex_);
  protected_ = std::move(ack.protected_checkpoints);
}

void Reporter::sync_if_due() {
  if (Clock::now() - last_sync_ < options_.sync_interval) return;
  last_sync_ = Clock::now();
  if (spool_.empty()) return;
  try {
    spool_.sync();
  } catch (const SystemError& error) {
    log_.error("{}; reports may be lost if the machine fails now", error.what());
  }
}

}  // namespace gnomon
