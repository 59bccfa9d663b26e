#include "trainer/reporter.h"

#include <fmt/format.h>

#include <limits>

#include "protocol/json.h"
#include "protocol/precision_plan.h"
#include "trainer/incarnation.h"

namespace gnomon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kEveryAttempt = std::numeric_limits<int64_t>::max();

bool is_unknown_run(const ApiError& error) {
  return error.status() == 404 && error.title() == "Unknown run";
}

// Sending again cannot help. Only a problem document is gnomond's word.
bool is_refusal(const ApiError& error) {
  return error.status() >= 400 && error.status() < 500 && !may_pass(error.status()) &&
         !error.title().empty();
}

int64_t attempt_of(const SpoolRecord& record) {
  if (record.target == "steps") return from_json<StepReport>(record.body).attempt;
  if (record.target == "checkpoints") return from_json<CheckpointReport>(record.body).attempt;
  if (record.target == "attempts") return from_json<AttemptStart>(record.body).attempt;
  if (record.target == "notices") return from_json<TrainerNotice>(record.body).attempt;
  if (record.target == "statistics") return from_json<StatisticsReport>(record.body).attempt;
  return kEveryAttempt - 1;
}

// A notice of the plan, if a report has one that the trainer took without the controller: with that
// plan's version and the step; nothing for other reports.
std::optional<TrainerNotice> own_plan_of(const SpoolRecord& record) {
  TrainerNotice notice;
  const auto of = [&](const auto& report, int64_t step) {
    notice.attempt = report.attempt;
    notice.step = step;
    notice.plan_version = report.plan_version;
    notice.time = report.time;
  };
  if (record.target == "steps") {
    const auto report = from_json<StepReport>(record.body);
    of(report, report.step);
  } else if (record.target == "checkpoints") {
    const auto report = from_json<CheckpointReport>(record.body);
    of(report, report.step);
  } else if (record.target == "attempts") {
    const auto report = from_json<AttemptStart>(record.body);
    of(report, report.base_step);
  }
  if (notice.plan_version >= 0) return std::nullopt;
  PrecisionPlan bf16 = PrecisionPlan::bf16();
  bf16.version = notice.plan_version;
  notice.kind = "plan_without_controller";
  notice.text = "no controller: every GEMM in BF16 (told again, since the ledger did not know it)";
  notice.plan = bf16.to_toml();
  return notice;
}

}  // namespace

// Titles of controller/supervisor/checks.h, which docs/api.md has.
bool is_replaced(const ApiError& error) {
  return error.status() == 409 && error.title() == "Another trainer has taken over";
}

void Contact::succeeded() {
  std::lock_guard lock(mutex_);
  away_since_.reset();
}

void Contact::failed(const std::string& why) {
  std::lock_guard lock(mutex_);
  why_ = why;
  if (!away_since_) away_since_ = Clock::now();
}

double Contact::away_seconds() const {
  std::lock_guard lock(mutex_);
  return away_since_ ? std::chrono::duration<double>(Clock::now() - *away_since_).count() : 0;
}

std::string Contact::why() const {
  std::lock_guard lock(mutex_);
  return why_;
}

bool Contact::should_log_refusal() {
  constexpr std::chrono::minutes kBetween(1);
  std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (logged_refusal_ && now - *logged_refusal_ < kBetween) return false;
  logged_refusal_ = now;
  return true;
}

Reporter::Reporter(ReporterOptions options, Spool& spool, Contact& contact, spdlog::logger& log)
    : options_(std::move(options)),
      spool_(spool),
      contact_(contact),
      log_(log),
      client_(options_.controller),
      backoff_(options_.backoff_first, options_.backoff_longest),
      last_sync_(Clock::now()),
      refused_log_(spool.directory() / "refused.jsonl", options_.refused_bytes_max),
      standing_(options_.standing),
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

void Reporter::knows(Standing standing) {
  std::lock_guard lock(mutex_);
  standing_ = std::move(standing);
}

Standing Reporter::standing() const {
  std::lock_guard lock(mutex_);
  return standing_;
}

void Reporter::unknown(const std::string& run) {
  {
    std::lock_guard lock(mutex_);
    if (run_ != run || run.empty()) return;
    run_.clear();
    run_unknown_ = true;
  }
  log_.warn("{} is unknown to the controller: registering again, with the attempts so far", run);
  spool_.wake();
}

void Reporter::doubt(const std::string& run) {
  {
    std::lock_guard lock(mutex_);
    if (run_ == run) run_.clear();
  }
  spool_.wake();
}

void Reporter::give_up(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (replaced_) return;
    replaced_ = why;
  }
  log_.error("another trainer has this run now: {}", why);
  if (options_.on_replaced) options_.on_replaced();
}

std::optional<std::string> Reporter::replaced() const {
  const std::lock_guard lock(mutex_);
  return replaced_;
}

std::string Reporter::own(const std::string& target) const {
  const std::lock_guard lock(mutex_);
  return sends_incarnation_ ? with_incarnation(target, options_.incarnation) : target;
}

std::string Reporter::run_id() const {
  std::lock_guard lock(mutex_);
  return run_;
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
      if (run_id().empty()) register_run();
      if (attempts_due_) {
        // Those that are still in the spool have their place there.
        const std::vector<std::string> spooled = spool_.pending("attempts");
        send_attempts(spooled.empty() ? kEveryAttempt
                                      : from_json<AttemptStart>(spooled.front()).attempt);
        attempts_due_ = false;
      }
      send_oldest();
      backoff_.reset();
      if (away) log_.info("the controller is back; {} records to send", spool_.records());
      away = false;
    } catch (const std::exception& error) {
      if (wait(std::chrono::milliseconds(0))) return;
      contact_.failed(error.what());
      const auto* answer = dynamic_cast<const ApiError*>(&error);
      if (answer != nullptr && is_replaced(*answer)) return give_up(error.what());
      if (answer != nullptr &&
          (answer->refuses_token() || (is_refusal(*answer) && !is_unknown_run(*answer)))) {
        if (contact_.should_log_refusal()) {
          log_.error(
              "{}; training goes on, reports wait in the spool until the controller takes it",
              error.what());
        }
      } else if (!away) {
        log_.warn("{}; training goes on, reports wait in the spool", error.what());
      } else {
        log_.debug("{}", error.what());
      }
      away = true;
      // Whoever answers next may have another ledger, in which this run's id is another run's.
      if (dynamic_cast<const ConnectionError*>(&error) != nullptr) doubt(run_id());
      sync_if_due();
      if (wait(backoff_.next(asked_pause(error)))) return;
    }
  }
}

std::optional<RunRegistered> Reporter::registered() const {
  std::lock_guard lock(mutex_);
  return registered_;
}

void Reporter::register_run() {
  RunRegistration registration = options_.registration;
  {
    std::lock_guard lock(mutex_);
    registration.last_directive = standing_.last_directive;
    registration.newest_plan_version = standing_.newest_plan_version;
  }
  const std::string target = own("/v1/runs");
  const bool sends_incarnation = target != "/v1/runs";
  HttpResponse response;
  try {
    response = client_.checked(
        "POST",
        sends_incarnation ? fmt::format("{}&running={:.3f}", target, process_seconds()) : target,
        to_json(registration), options_.request_timeout);
  } catch (const ApiError& error) {
    if (!sends_incarnation || error.title() != "Unknown parameter") throw;
    log_.warn("this controller does not tell trainers of one run apart: {}", error.what());
    const std::lock_guard lock(mutex_);
    sends_incarnation_ = false;
    throw;
  }
  const auto registered = from_answer<RunRegistered>(response.body);
  contact_.succeeded();
  ++registrations_;
  {
    std::lock_guard lock(mutex_);
    run_ = registered.run;
    registered_ = registered;
    if (run_ != last_run_ || run_unknown_) {
      log_.info("registered at {} as {} (mode {})", options_.controller.url, run_, registered.mode);
      attempts_due_ = true;
      ++ledgers_;
    }
    last_run_ = run_;
    run_unknown_ = false;
  }
  changed_.notify_all();
}

// What a ledger does not take of them it has otherwise already; that is no reason to stop.
void Reporter::send_attempts(int64_t below) {
  for (const AttemptStart& attempt : standing().attempts) {
    if (attempt.attempt >= below) return;
    try {
      post("attempts", to_json(attempt));
    } catch (const ApiError& error) {
      if (!is_refusal(error) || is_unknown_run(error) || is_replaced(error)) throw;
      log_.warn("attempt {} was sent again and refused: {}", attempt.attempt, error.what());
    }
  }
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
  const SpoolRecord& record = records.front();
  if (record.target == "steps") {
    const size_t sent = send_steps(records);
    if (sent > 0) spool_.acknowledge(records[sent - 1].number);
    return;
  }
  if (record.target.empty()) {
    log_.error("{}; it cannot be reported", record.body);
    ++refused_;
  } else if (!is_of_deleted_checkpoint(record) && !deliver(record, record.body)) {
    return;
  }
  spool_.acknowledge(record.number);
}

bool Reporter::is_of_deleted_checkpoint(const SpoolRecord& record) const {
  if (record.target != "checkpoints" || !options_.deleted) return false;
  const auto report = from_json<CheckpointReport>(record.body);
  if (!options_.deleted(report)) return false;
  log_.debug("the checkpoint of step {} is not reported: it was deleted", report.step);
  return true;
}

// Returns how many of `records`, from the first on, were steps and are done with.
size_t Reporter::send_steps(const std::vector<SpoolRecord>& records) {
  StepBatch batch;
  for (const SpoolRecord& record : records) {
    if (record.target != "steps") break;
    batch.steps.push_back(from_json<StepReport>(record.body));
    if (record.number <= one_by_one_until_) break;
  }
  const size_t count = batch.steps.size();
  if (count == 1) return deliver(records.front(), to_json(batch)) ? 1 : 0;
  try {
    post("steps", to_json(batch));
    return count;
  } catch (const ApiError& error) {
    if (is_unknown_run(error) || is_replaced(error) || may_pass(error.status())) {
      judge(records.front(), error);
    } else if (!cured_by_plans(records[count - 1], error) &&
               !cured_by_attempts(records[count - 1], error)) {
      // One bad step must not take the others with it.
      one_by_one_until_ = records[count - 1].number;
    }
    return 0;
  }
}

// True when the record is done with: taken, or set aside. False: to be sent again at once. Throws
// when it is to be sent again a little later.
bool Reporter::deliver(const SpoolRecord& record, const std::string& body) {
  try {
    post(record.target, body);
    return true;
  } catch (const ApiError& error) {
    return judge(record, error);
  }
}

// Called while `error` is being handled.
bool Reporter::judge(const SpoolRecord& record, const ApiError& error) {
  if (is_unknown_run(error)) {
    unknown(run_id());
    throw;
  }
  if (is_replaced(error) || may_pass(error.status())) throw;
  const bool no_such_path = error.status() == 404 && error.title() == "Unknown path";
  const bool may_be_lost = record.target == "notices" || record.target == "statistics";
  if (may_be_lost && (no_such_path || error.status() == 405)) {
    log_.info("this controller takes no {}; dropped: {:.200}", record.target, record.body);
    contact_.succeeded();
    return true;
  }
  if (cured_by_plans(record, error) || cured_by_attempts(record, error)) return false;
  if (is_refusal(error)) {
    contact_.succeeded();
    set_aside(record, error.status(), error.what());
    return true;
  }
  if (failing_ != record.number) tries_ = 0;
  failing_ = record.number;
  if (++tries_ < options_.tries_max - 1) throw;
  // Only a record that fails between two registrations that succeed is at fault: a controller that
  // took nothing at all may have come back since the record was tried.
  const bool registered_before = registered_for_ == record.number;
  registered_for_ = -1;
  register_run();  // throws when the controller takes nothing at all
  if (!registered_before) {
    registered_for_ = record.number;
    return false;
  }
  set_aside(record, error.status(), fmt::format("{} (tried {} times)", error.what(), tries_));
  return true;
}

// A new ledger does not know the attempt of a report: it gets all up to that one, once for each
// report.
bool Reporter::cured_by_attempts(const SpoolRecord& record, const ApiError& error) {
  const bool unknown = error.status() == 409 && error.title() == "Unknown attempt";
  const bool gap = error.status() == 409 && record.target == "attempts";
  if ((!unknown && !gap) || cured_ == record.number) return false;
  cured_ = record.number;
  log_.warn("{}: telling the attempts so far again", error.what());
  if (unknown) ++ledgers_;
  send_attempts(gap ? attempt_of(record) : attempt_of(record) + 1);
  return true;
}

// A ledger that does not know a report's plan gets those that there are, once for each
// report.
bool Reporter::cured_by_plans(const SpoolRecord& record, const ApiError& error) {
  if (error.status() != 409 || error.title() != "Unknown plan") return false;
  if (cured_by_plans_ == record.number) return false;
  cured_by_plans_ = record.number;
  log_.warn("{}: telling the plans so far again", error.what());
  register_run();
  if (const std::optional<TrainerNotice> notice = own_plan_of(record)) {
    post("notices", to_json(*notice));
  }
  return true;
}

void Reporter::set_aside(const SpoolRecord& record, int status, const std::string& why) {
  ++refused_;
  log_.error("the controller refused a report: {}; it is in {}: {}", why,
             refused_log_.file().string(), record.body);
  try {
    refused_log_.append(record, status, why);
  } catch (const Error& error) {
    log_.error("it is dropped, since it could not be written there: {}", error.what());
  }
}

void Reporter::post(const std::string& target, const std::string& body) {
  const std::string run = run_id();
  // Doubted since this turn began.
  if (run.empty()) throw ConnectionError("the run has to be registered again");
  const std::string path = own(fmt::format("/v1/runs/{}/{}", run, target));
  const HttpResponse response = client_.checked("POST", path, body, options_.request_timeout);
  contact_.succeeded();
  if (target.starts_with("directives/") || target == "notices") return;
  auto ack = from_answer<ReportAck>(response.body);
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
