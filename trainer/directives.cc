#include "trainer/directives.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/wall_clock.h"
#include "protocol/json.h"
#include "protocol/text.h"

namespace gnomon {
DirectiveInbox::DirectiveInbox(DirectiveOptions options, Reporter& reporter, Spool& spool,
                               Contact& contact, spdlog::logger& log)
    : options_(std::move(options)),
      reporter_(reporter),
      spool_(spool),
      contact_(contact),
      log_(log),
      client_(options_.controller),
      backoff_(options_.backoff_first, options_.backoff_longest),
      thread_([this] { run(); }) {}

DirectiveInbox::~DirectiveInbox() { close(); }

std::vector<Directive> DirectiveInbox::close() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  client_.cancel();
  if (thread_.joinable()) thread_.join();
  std::vector<Directive> left(queue_.begin(), queue_.end());
  queue_.clear();
  return left;
}

std::optional<Directive> DirectiveInbox::pop() {
  std::lock_guard lock(mutex_);
  if (queue_.empty()) return std::nullopt;
  Directive directive = std::move(queue_.front());
  queue_.pop_front();
  return directive;
}

bool DirectiveInbox::urgent() const {
  std::lock_guard lock(mutex_);
  return std::any_of(queue_.begin(), queue_.end(),
                     [](const Directive& each) { return each.kind != "checkpoint_now"; });
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
      contact_.failed(error.what());
      const auto* answer = dynamic_cast<const ApiError*>(&error);
      if (answer != nullptr && is_replaced(*answer)) return reporter_.give_up(error.what());
      if (answer != nullptr && answer->status() == 404 && answer->title() == "Unknown run") {
        reporter_.unknown(*run);
      } else if (dynamic_cast<const ConnectionError*>(&error) != nullptr) {
        reporter_.doubt(*run);
      }
      const bool refused = answer != nullptr && answer->refuses_token();
      const bool log_it = refused && contact_.should_log_refusal();
      log_.log(log_it ? spdlog::level::warn : spdlog::level::debug, "directives: {}", error.what());
      if (wait(backoff_.next(asked_pause(error)))) return;
    }
  }
}

void DirectiveInbox::poll(const std::string& run) {
  constexpr std::chrono::seconds kSlack(10);
  notice_a_new_ledger();
  // Once after each registration all open directives are asked for: a number that was used would
  // not be seen otherwise.
  const int64_t registration = reporter_.registrations();
  const bool all = registration != registration_;
  // Those that were answered before the poll, of which the controller may not know.
  std::set<std::string> on_their_way;
  const int64_t last = reporter_.standing().last_directive;
  if (all) {
    for (std::string& each : spool_.pending_targets()) on_their_way.insert(std::move(each));
  }
  const std::string target =
      fmt::format("/v1/runs/{}/directives?after={}&wait={}s", run,
                  all ? 0 : std::max(last_seen_, last), options_.poll.count());
  const HttpResponse response =
      client_.checked("GET", reporter_.own(target), {}, options_.poll + kSlack);
  contact_.succeeded();
  for (const Directive& directive : from_answer<DirectiveList>(response.body).directives) {
    const bool used = directive.number <= last;
    // The end of the last one is sent again at each start.
    const bool answered =
        used && (directive.number == last || on_their_way.contains(ack_target(directive.number)));
    if (used && !answered && !reject_used(directive, last)) return;
    if (used || directive.number <= last_seen_) continue;
    if (!accept(directive)) return;
    last_seen_ = directive.number;
  }
  registration_ = registration;
}

// What the lost ledger's controller wanted and was not done yet, the new one does not know of.
void DirectiveInbox::notice_a_new_ledger() {
  const int64_t ledger = reporter_.ledgers();
  if (ledger == ledger_) return;
  ledger_ = ledger;
  last_seen_ = 0;
  std::lock_guard lock(mutex_);
  for (const Directive& directive : queue_) {
    log_.warn("directive {} ({}) is given up: the ledger that knew it is gone", directive.number,
              directive.kind);
  }
  queue_.clear();
}

// False when there was no room for the answer: the directive will be delivered again.
bool DirectiveInbox::answer(const Directive& directive, AckState state, const std::string& reason) {
  DirectiveAck ack;
  ack.state = state;
  ack.reason = shortened(reason, rules::kSentence);
  ack.time = now_seconds();
  if (spool_.append(ack_target(directive.number), to_json(ack)) == Spool::Outcome::kWritten)
    return true;
  log_.warn("no room in the spool to answer directive {}", directive.number);
  wait(backoff_.next());
  return false;
}

bool DirectiveInbox::accept(const Directive& directive) {
  log_.info("directive {} {}: {}", directive.number, directive.kind, directive.reason);
  if (!answer(directive, "acknowledged", "")) return false;
  std::lock_guard lock(mutex_);
  queue_.push_back(directive);
  return true;
}

bool DirectiveInbox::reject_used(const Directive& directive, int64_t last) {
  const std::string reason = used_number(directive.number, last);
  log_.error("directive {} {} is rejected: {}", directive.number, directive.kind, reason);
  return answer(directive, "rejected", reason);
}

std::string ack_target(int64_t number) { return fmt::format("directives/{}/ack", number); }

std::string used_number(int64_t number, int64_t last) {
  return fmt::format(
      "number {} was used before; accepted: numbers above {}, the last directive that this trainer "
      "has answered",
      number, last);
}

}  // namespace gnomon
