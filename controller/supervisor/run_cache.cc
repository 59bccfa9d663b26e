#include "controller/supervisor/run_cache.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <limits>
#include <utility>

#include "base/failpoint.h"
#include "controller/auth/http_error.h"
#include "controller/supervisor/alerts.h"
#include "controller/supervisor/effects.h"
#include "protocol/json.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_deletion.h"

namespace gnomon {
namespace {

constexpr double kTickAgainSeconds = 60;  // after a tick that failed or changed nothing

}  // namespace

RunCache::RunCache(Metrics& metrics, ReplayQueue& queue, ChangeNotifiers& notifiers,
                   RunCacheOptions options, std::function<double()> now,
                   std::function<double()> steady_now)
    : metrics_(metrics),
      queue_(queue),
      notifiers_(notifiers),
      options_(std::move(options)),
      now_(std::move(now)),
      steady_now_(std::move(steady_now)),
      begun_at_(steady_now_()) {}

void RunCache::restore(Connection& connection) {
  for (int64_t id : ledger::run_ids(connection)) {
    RunRow row = ledger::load_run(connection, id).value();
    if (row.state == ledger::kDeleting) continue;
    double left = row.finished_at ? *row.finished_at + options_.series_keep_seconds - now() : 0;
    if (left < 0) {
      continue;  // ended long ago
    }
    try {
      restore_run(connection, row);
    } catch (const RunSetAside&) {  // logged
    } catch (const std::exception& error) {
      spdlog::error("the metrics of {} cannot be read from the ledger: {}", run_name(id),
                    error.what());
    }
    if (row.finished_at) {
      metrics_.drop_run_at(id, steady_now() + left);
    }
  }
}

void RunCache::restore_run(Connection& connection, const RunRow& row) {
  const auto [policy, known] = set_aside_.read(connection, row);
  if (known && !known->rebuilt_because.empty()) {
    spdlog::warn("the decision state of {} was computed from its events: {}", run_name(row.id),
                 known->rebuilt_because);
    rebuilt_.push_back(row.id);
  }
  RunNumbers numbers = load_run_numbers(connection, row.id);
  if (known) {
    add_state(numbers, known->state, policy);
    for (const StepNumbers& step : known->uncounted) count_step(numbers, step);
  }
  metrics_.start_run(row.id, row.label(), std::move(numbers));
  if (known && row.state == "live") {
    deadlines_.set(row.id, decide::next_deadline(known->state));
    verdicts_.set(row.id, decide::verdict_facts(known->state, policy));
  }
}

// Shows it as a start does. Throws RunSetAside while it cannot be read.
void RunCache::restore_again(LedgerTransaction& transaction, const RunRow& row,
                             const std::string& reason) {
  restore_run(transaction.connection(), row);
  transaction.on_rollback([this, row, reason] { set_aside_.add_again(row, reason); });
}

void RunCache::forget(LedgerTransaction& transaction, int64_t id) {
  runs_.erase(id);
  transaction.on_commit([this, id] {
    deadlines_.set(id, std::numeric_limits<double>::infinity());
    set_aside_.forget(id);
    metrics_.drop_run_at(id, steady_now());
    verdicts_.forget(id);
    queue_.forget_run(id);
    notifiers_.directives.of(id).notify_all();
    const std::lock_guard lock(contact_mutex_);
    contact_at_.erase(id);
  });
}

void RunCache::forget_when_ended(LedgerTransaction& transaction, int64_t id) {
  transaction.on_commit([this, id] {
    const auto found = runs_.find(id);
    if (found != runs_.end() && found->second.life != "live") runs_.erase(found);
  });
}

CachedRun& RunCache::load(LedgerTransaction& transaction, int64_t id) {
  // Whatever made a write fail, the next one starts from what the ledger has.
  transaction.on_rollback([this, id] { runs_.erase(id); });
  if (auto found = runs_.find(id); found != runs_.end()) {
    return found->second;
  }
  Connection& connection = transaction.connection();
  std::optional<RunRow> row = ledger::load_run(connection, id);
  if (!row) {
    throw unknown_run(run_name(id));
  }
  if (row->state == ledger::kDeleting) {
    throw HttpError(409, "The run is being deleted",
                    fmt::format("{} is being deleted", row->label()),
                    "DELETE of it until it is gone; another run");
  }
  const std::string set_aside = set_aside_.reason(id);
  if (!set_aside.empty()) restore_again(transaction, *row, set_aside);
  std::vector<decide::Effect> effects;
  std::vector<std::function<void()>> late_effects;
  const LateEffects late = [&](const std::vector<decide::Effect>& of_event, int64_t seq,
                               double time) {
    spdlog::warn("of event {} of {} this version thinks otherwise than the one before", seq,
                 row->label());
    effects.insert(effects.end(), of_event.begin(), of_event.end());
    late_effects.emplace_back([this, &transaction, id, of_event, seq, time] {
      for (const decide::Effect& effect : of_event) {
        apply_effect({transaction, metrics_, queue_, notifiers_, id, seq, time}, effect);
      }
    });
  };
  CachedRun& run = runs_.emplace(id, read_run(connection, *row, late)).first->second;
  for (const auto& apply : late_effects) apply();
  if (!effects.empty()) notify_people(options_.outbox, transaction, run, nullptr, effects, now());
  if (!effects.empty() || run.save_due) {
    run.save_due = false;
    save_at_end(transaction, run);
  }
  queue_.set_terms(id, terms_of(connection, run));
  if (!set_aside.empty() && on_return_) on_return_(transaction, id);
  if (run.life != "live") forget_when_ended(transaction, id);
  return run;
}

CachedRun RunCache::read_run(Connection& connection, const RunRow& row, const LateEffects& late) {
  auto [policy, known] = set_aside_.read(connection, row, late);
  CachedRun run;
  run.id = row.id;
  run.label = row.label();
  run.life = row.state;
  run.policy = std::move(policy);
  run.policy_text = row.policy;
  try {
    run.registration = from_json<RunRegistration>(row.registration);
    terms_of(connection, run);
  } catch (const Error& error) {
    set_aside_.add(connection, row, error.what());
    throw RunSetAside(row.label(), error.what());
  }
  if (known) {
    run.state = std::move(known->state);
    run.seq = known->seq;
    run.unsaved = std::ssize(known->uncounted);
    for (const StepRow& step : known->uncounted) run.totals.add(step);
    run.save_due = !known->rebuilt_because.empty();
  }
  run.newest_step = ledger::newest_step(connection, row.id).value_or(std::pair<int64_t, int64_t>());
  return run;
}

void RunCache::save_rebuilt(LedgerTransaction& transaction) {
  for (const int64_t run : rebuilt_) readable(transaction, run);
  rebuilt_.clear();
}

bool RunCache::readable(LedgerTransaction& transaction, int64_t run) {
  try {
    load(transaction, run);
    return true;
  } catch (const HttpError&) {
    return false;
  }
}

void RunCache::set_terms_on_commit(LedgerTransaction& transaction, const CachedRun& run) {
  transaction.on_commit(
      [&queue = queue_, id = run.id, terms = terms_of(transaction.connection(), run)] {
        queue.set_terms(id, terms);
      });
}

std::vector<decide::Effect> RunCache::record_event(LedgerTransaction& transaction, CachedRun& run,
                                                   const decide::Event& event) {
  const double time = now();
  ledger::insert(transaction.connection(), EventRow{.run = run.id,
                                                    .seq = run.seq + 1,
                                                    .time = time,
                                                    .type = decide::event_type(event),
                                                    .body = decide::event_to_json(event)});
  run.ack.reset();
  save_at_end(transaction, run);
  return step(transaction, run, event, time);
}

std::vector<decide::Effect> RunCache::step(LedgerTransaction& transaction, CachedRun& run,
                                           const decide::Event& event, double time) {
  ++run.seq;
  ++run.unsaved;
  std::vector<decide::Effect> effects;
  try {
    effects = decide::decide_in_place(run.state, event, run.policy, time).effects;
  } catch (const std::exception& error) {
    // The same report will fail again; the sender must be able to tell that from its own fault.
    throw Error(fmt::format("the decision core failed on {} of {}, nothing of it was recorded: {}",
                            decide::event_type(event), run.label, error.what()));
  }
  const EffectContext context{transaction, metrics_, queue_, notifiers_, run.id, run.seq, time};
  for (const decide::Effect& effect : effects) {
    apply_effect(context, effect);
  }
  notify_people(options_.outbox, transaction, run, &event, effects, time);
  if (!effects.empty()) {
    run.ack.reset();
    save_at_end(transaction, run);
  }
  return effects;
}

void RunCache::save_at_end(LedgerTransaction& transaction, CachedRun& run) {
  if (std::exchange(run.save_due, true)) return;
  transaction.at_end([this, &transaction, id = run.id] {
    const auto found = runs_.find(id);
    if (found != runs_.end() && found->second.save_due) save(transaction, found->second);
  });
}

void RunCache::save(LedgerTransaction& transaction, CachedRun& run) {
  ledger::save_state(transaction.connection(), run.id, {run.seq, decide::state_to_json(run.state)});
  run.totals.write(transaction.connection(), run.id);
  failpoint::reached(failpoint::Point::kStateSaved);
  run.saved_at = steady_now();
  run.unsaved = 0;
  run.save_due = false;
  show(transaction, run);
  transaction.on_commit([this, id = run.id, costs = cost_numbers(run.state, run.policy)] {
    metrics_.update_run(id, [&](RunNumbers& numbers) { numbers.costs = costs; });
  });
}

void RunCache::show(LedgerTransaction& transaction, const CachedRun& run) {
  transaction.on_commit([this, id = run.id, live = run.life == "live",
                         facts = decide::verdict_facts(run.state, run.policy),
                         phase = decide::phase_name(run.state), paused = run.state.paused,
                         deadline = decide::next_deadline(run.state)] {
    if (live) verdicts_.set(id, facts);
    metrics_.update_run(id, [&](RunNumbers& numbers) {
      numbers.phase = phase;
      numbers.paused = paused;
    });
    deadlines_.set(id, deadline);
  });
}

void RunCache::show_verdicts() {
  verdicts_.each(now(),
                 [this](int64_t id, decide::VerdictKind kind, const decide::VerdictFacts& facts) {
                   metrics_.update_run(id, [&](RunNumbers& numbers) {
                     numbers.verdict = kind;
                     numbers.facts = facts;
                   });
                 });
}

void RunCache::save_all(LedgerTransaction& transaction) {
  for (auto& [id, run] : runs_) {
    if (run.unsaved > 0) save(transaction, run);
  }
}

void RunCache::tick(LedgerTransaction& transaction, int64_t id) {
  CachedRun& run = load(transaction, id);
  // A core that fails now would fail again in the next second.
  transaction.on_rollback([this, id] { deadlines_.set(id, now() + kTickAgainSeconds); });
  double time = now();
  if (run.life != "live") {
    deadlines_.set(id, std::numeric_limits<double>::infinity());
    return;
  }
  if (decide::next_deadline(run.state) > time) {
    return;  // it was met between the look at the clock and this write
  }
  record_event(transaction, run, decide::Tick{});
  save(transaction, run);  // at once: the deadline that it shows may be put off below
  if (decide::next_deadline(run.state) <= time) {
    spdlog::error("the decision core of {} asks for a moment that has passed", run.label);
    transaction.on_commit([this, id, time] { deadlines_.set(id, time + kTickAgainSeconds); });
  }
}

void RunCache::record_contact(int64_t run) {
  const std::lock_guard lock(contact_mutex_);
  contact_at_[run] = steady_now();
}

double RunCache::silent_for(int64_t run) const {
  const std::lock_guard lock(contact_mutex_);
  const auto found = contact_at_.find(run);
  return steady_now() - (found == contact_at_.end() ? begun_at_ : found->second);
}

std::string RunCache::default_policy() {
  std::lock_guard lock(default_policy_mutex_);
  return options_.default_policy;
}

void RunCache::set_default_policy(const std::string& toml) {
  std::lock_guard lock(default_policy_mutex_);
  options_.default_policy = toml;
}

void RunCache::stream(LedgerTransaction& transaction, int64_t run, const std::string& type,
                      const std::string& body) {
  const int64_t id = ledger::insert_stream(transaction.connection(), now(), run, type, body);
  transaction.on_commit(
      [this, event = make_stream_event(id, run, type, body)] { notifiers_.stream.publish(event); });
}

}  // namespace gnomon
