#include "trainer/directives.h"

#include <fmt/format.h>

#include "protocol/json.h"

namespace gnomon {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

DirectiveInbox::DirectiveInbox(DirectiveOptions options, Reporter& reporter, Spool& spool,
                               Contact& contact, spdlog::logger& log)
    : options_(std::move(options)),
      reporter_(reporter),
      spool_(spool),
      contact_(contact),
      log_(log),
      client_(options_.url),
      backoff_(options_.backoff_first, options_.backoff_longest),
      last_seen_(options_.last_applied),
      thread_([this] { run(); }) {}

DirectiveInbox::~DirectiveInbox() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  client_.cancel();
  thread_.join();
}

std::optional<Directive> DirectiveInbox::take() {
  std::lock_guard lock(mutex_);
  if (queue_.empty()) return std::nullopt;
  Directive directive = std::move(queue_.front());
  queue_.pop_front();
  return directive;
}

// Returns whether to stop.
bool DirectiveInbox::wait(std::chrono::milliseconds duration) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, duration, [this] { return stopping_; });
}

void DirectiveInbox::run() {
  constexpr std::chrono::milliseconds kRegistrationCheck(200);
  while (!wait(std::chrono::milliseconds(0))) {
    const std::optional<std::string> run = reporter_.wait_for_run(kRegistrationCheck);
    if (!run) continue;
    try {
      poll(*run);
      backoff_.reset();
    } catch (const std::exception& error) {
      if (wait(std::chrono::milliseconds(0))) return;
      contact_.failed();
      log_.debug("directives: {}", error.what());
      if (wait(backoff_.next())) return;
    }
  }
}

void DirectiveInbox::poll(const std::string& run) {
  constexpr std::chrono::seconds kSlack(10);
  const std::string target = fmt::format("/v1/runs/{}/directives?after={}&wait={}s", run,
                                         last_seen_, options_.poll.count());
  const HttpResponse response = client_.checked("GET", target, {}, options_.poll + kSlack);
  contact_.succeeded();
  for (const Directive& directive : from_json<DirectiveList>(response.body).directives) {
    if (directive.number <= last_seen_) continue;
    if (!accept(directive)) return;
    last_seen_ = directive.number;
  }
}

// False when there was no room for the acknowledgement: it will be delivered again.
bool DirectiveInbox::accept(const Directive& directive) {
  log_.info("directive {} {}: {}", directive.number, directive.kind, directive.reason);
  DirectiveAck ack;
  ack.state = "acknowledged";
  ack.time = now_seconds();
  const std::string target = fmt::format("directives/{}/ack", directive.number);
  if (spool_.append(target, to_json(ack)) != Spool::Outcome::kWritten) {
    log_.warn("no room in the spool to acknowledge directive {}", directive.number);
    wait(backoff_.next());
    return false;
  }
  std::lock_guard lock(mutex_);
  queue_.push_back(directive);
  return true;
}

}  // namespace gnomon
