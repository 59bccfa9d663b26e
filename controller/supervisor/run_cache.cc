#include "controller/supervisor/run_cache.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/failpoint.h"
#include "controller/decision_state.h"
#include "controller/effects.h"
#include "controller/layers.h"
#include "controller/metrics/totals.h"
#include "controller/policies_on_record.h"
#include "controller/refusal.h"
#include "controller/replay_join.h"
#include "protocol/json.h"
#include "storage/ledger_audit.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_deletion.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

constexpr double kTickAgainSeconds = 60;  // after a tick that failed or changed nothing

}  // namespace

RunCache::RunCache(Metrics& metrics, Bells& bells, RunCacheOptions options,
                   std::function<double()> now, std::function<double()> steady_now)
    : metrics_(metrics),
      bells_(bells),
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
    for (const StepNumbers& step : known->told) count_step(numbers, step);
  }
  metrics_.start_run(row.id, row.label(), std::move(numbers));
  if (known && row.state == "live") {
    deadlines_.set(row.id, decide::next_deadline(known->state));
    verdicts_.set(row.id, decide::verdict_facts(known->state, policy));
  }
}

void RunCache::forget_when_ended(LedgerTransaction& transaction, int64_t id) {
  transaction.on_commit([this, id] {
    const auto found = runs_.find(id);
    if (found != runs_.end() && found->second.life != "live") runs_.erase(found);
  });
}

RunCache::Run& RunCache::load(LedgerTransaction& transaction, int64_t id) {
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
    throw Refusal(409, "The run is being deleted", fmt::format("{} is being deleted", row->label()),
                  "DELETE of it until it is gone; another run");
  }
  std::vector<decide::Effect> effects;
  std::vector<std::function<void()>> late_effects;
  const LateEffects late = [&](const std::vector<decide::Effect>& of_event, int64_t seq,
                               double time) {
    spdlog::warn("of event {} of {} this version thinks otherwise than the one before", seq,
                 row->label());
    effects.insert(effects.end(), of_event.begin(), of_event.end());
    late_effects.emplace_back([this, &transaction, id, of_event, seq, time] {
      for (const decide::Effect& effect : of_event) {
        apply_effect({transaction, metrics_, bells_, id, seq, time}, effect);
      }
    });
  };
  Run& run = runs_.emplace(id, read_run(connection, *row, late)).first->second;
  for (const auto& apply : late_effects) apply();
  if (!effects.empty()) tell_people(transaction, run, nullptr, effects, now());
  if (!effects.empty() || run.save_due) {
    run.save_due = false;
    save_at_end(transaction, run);
  }
  bells_.work.set_terms(id, terms_of(connection, run));
  if (run.life != "live") forget_when_ended(transaction, id);
  return run;
}

RunCache::Run RunCache::read_run(Connection& connection, const RunRow& row,
                                 const LateEffects& late) {
  auto [policy, known] = set_aside_.read(connection, row, late);
  Run run;
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
    run.unsaved = std::ssize(known->told);
    for (const StepRow& step : known->told) run.totals.add(step);
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
  } catch (const Refusal&) {
    return false;
  }
}

WorkBoard::Terms RunCache::terms_of(Connection& connection, const Run& run) {
  const decide::Policy::Verifier& verifier = run.policy.verifier;
  const RunRegistration& registration = run.registration;
  WorkBoard::Terms terms{verifier.share, verifier.requirements, registration.trainer_replays};
  terms.checkpoint_format = registration.checkpoint_format;
  terms.framework = registration.framework;
  // A replay runs where its run does unless the verifier was told otherwise, and a CPU is anywhere.
  const std::string key = std::string(kBackendLabel) + "=";
  const bool says_so = std::ranges::any_of(
      terms.requirements, [&](const std::string& one) { return one.starts_with(key); });
  const std::string backend =
      fingerprint_of(connection, run, ledger::newest_attempt(connection, run.id)).backend;
  if (backend == "cuda" && !says_so) terms.requirements.push_back(key + backend);
  terms.quarantined = ledger::quarantined_verifiers(connection, run.id);
  return terms;
}

void RunCache::set_terms_on_commit(LedgerTransaction& transaction, const Run& run) {
  transaction.on_commit(
      [&board = bells_.work, id = run.id, terms = terms_of(transaction.connection(), run)] {
        board.set_terms(id, terms);
      });
}

std::vector<decide::Effect> RunCache::hear(LedgerTransaction& transaction, Run& run,
                                           const decide::Event& event) {
  const double time = now();
  ledger::insert(transaction.connection(), EventRow{.run = run.id,
                                                    .seq = run.seq + 1,
                                                    .time = time,
                                                    .type = decide::event_type(event),
                                                    .body = decide::event_to_json(event)});
  run.ack.reset();
  save_at_end(transaction, run);
  return tell_core(transaction, run, event, time);
}

std::vector<decide::Effect> RunCache::tell_core(LedgerTransaction& transaction, Run& run,
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
  const EffectContext context{transaction, metrics_, bells_, run.id, run.seq, time};
  for (const decide::Effect& effect : effects) {
    apply_effect(context, effect);
  }
  tell_people(transaction, run, &event, effects, time);
  if (!effects.empty()) {
    run.ack.reset();
    save_at_end(transaction, run);
  }
  return effects;
}

bool RunCache::hear_step(LedgerTransaction& transaction, Run& run, const StepReport& step,
                         double time) {
  Connection& connection = transaction.connection();
  const std::pair<int64_t, int64_t> place{step.attempt, step.step};
  const bool last = place > run.newest_step;
  const decide::StepReported event = decide::step_event(step);
  // In a row NULL is no norm at all.
  const bool nan = event.grad_norm && std::isnan(*event.grad_norm);
  const auto seq = last && !nan ? std::optional<int64_t>(run.seq + 1) : std::nullopt;
  if (!ledger::insert_step(connection, {step, run.id, time, seq})) return false;
  run.totals.add(step);
  if (last) run.newest_step = place;
  if (!seq) {
    EventRow row{run.id, run.seq + 1, time, "step_reported", step.attempt, step.step};
    if (nan) row.body = decide::event_to_json(event);
    ledger::insert(connection, row);
  }
  tell_core(transaction, run, event, time);
  // Retention may delete the steps of a run that has ended, but not what the state knows of them.
  if (run.life != "live") save_at_end(transaction, run);
  return true;
}

void RunCache::save_at_end(LedgerTransaction& transaction, Run& run) {
  if (std::exchange(run.save_due, true)) return;
  transaction.at_end([this, &transaction, id = run.id] {
    const auto found = runs_.find(id);
    if (found != runs_.end() && found->second.save_due) save(transaction, found->second);
  });
}

void RunCache::save(LedgerTransaction& transaction, Run& run) {
  ledger::save_state(transaction.connection(), run.id, {run.seq, decide::state_to_json(run.state)});
  run.totals.write(transaction.connection(), run.id);
  failpoint::reached(failpoint::Point::kStateSaved);
  run.saved_at = steady_now();
  run.unsaved = 0;
  run.save_due = false;
  show(transaction, run);
  transaction.on_commit([this, id = run.id, money = money_numbers(run.state, run.policy)] {
    metrics_.update_run(id, [&](RunNumbers& numbers) { numbers.money = money; });
  });
}

void RunCache::show(LedgerTransaction& transaction, const Run& run) {
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
  Run& run = load(transaction, id);
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
  hear(transaction, run, decide::Tick{});
  save(transaction, run);  // at once: the deadline that it shows may be put off below
  if (decide::next_deadline(run.state) <= time) {
    spdlog::error("the decision core of {} asks for a moment that has passed", run.label);
    transaction.on_commit([this, id, time] { deadlines_.set(id, time + kTickAgainSeconds); });
  }
}

const decide::Policy& RunCache::policy(LedgerTransaction& transaction, int64_t run) {
  return load(transaction, run).policy;
}

void RunCache::set_policy(LedgerTransaction& transaction, int64_t id, const std::string& toml) {
  Run& run = load(transaction, id);
  decide::Policy policy = decide::Policy::parse(toml, "policy");
  save(transaction, run);  // what it was told until now, it was told under the old one
  record_replaced_policy(transaction.connection(), now(), id, run.seq, run.policy_text);
  run.policy_text = toml;
  run.policy = std::move(policy);
  ledger::set_policy(transaction.connection(), id, toml);
  set_terms_on_commit(transaction, run);
  ledger::insert_audit(transaction.connection(), now(), id, "policy_changed", toml);
}

void RunCache::set_default_policy(const std::string& toml) {
  std::lock_guard lock(default_policy_mutex_);
  options_.default_policy = toml;
}

Fingerprint RunCache::fingerprint_of(Connection& connection, const Run& run, int64_t attempt) {
  std::optional<AttemptRow> row = ledger::find_attempt(connection, run.id, attempt);
  return row && row->fingerprint ? from_json<Fingerprint>(*row->fingerprint)
                                 : run.registration.fingerprint;
}

void RunCache::replay_finished(LedgerTransaction& transaction, const ReplayRow& replay,
                               const std::string& verifier, const ReplayResult& result) {
  Run& run = load(transaction, replay.run);
  Connection& connection = transaction.connection();
  const WindowRow window =
      ledger::find_window(connection, replay.run, replay.window).value();  // Leases looked at it
  double time = now();
  ledger::insert_result(connection, replay, verifier, to_json(result.fingerprint), result, time);
  std::vector<StepRow> run_steps =
      ledger::steps_between(connection, replay.run, window.attempt, window.start_step + 1,
                            window.start_step + window.steps);
  decide::ReplayFinished event =
      join_replay(replay, result, run_steps, fingerprint_of(connection, run, window.attempt),
                  verifier, replay.on_trainer || is_trainer(verifier));
  if (!run.registration.capabilities.exact_replay) {
    event.fingerprint_equal = false;
    event.fingerprint.clear();
  }
  hear(transaction, run, event);
  double seconds = result.replay_seconds + result.eval_seconds;
  std::optional<std::pair<double, double>> shadow;
  if (replay.arm == "bf16" && replay.purpose == "shadow" && !event.losses.empty() &&
      std::isfinite(event.run_losses.back())) {
    shadow = {event.losses.back(), event.run_losses.back()};
  }
  transaction.on_commit([this, id = run.id, seconds, shadow] {
    metrics_.update_run(id, [&](RunNumbers& numbers) {
      numbers.verify_seconds += seconds;
      if (shadow) {
        numbers.shadow_loss = shadow->first;
        numbers.paired_loss = shadow->second;
      }
    });
  });
}

void RunCache::replay_failed(LedgerTransaction& transaction, const ReplayRow& replay,
                             const std::string& reason) {
  Run& run = load(transaction, replay.run);
  hear(transaction, run, decide::ReplayFailed{replay.replay, replay.window, replay.arm, reason});
}

void RunCache::show_layers(LedgerTransaction& transaction, Run& run, int64_t plan_version) {
  if (run.newest_plan == plan_version) {
    return;
  }
  run.newest_plan = plan_version;
  std::optional<std::string> toml =
      ledger::find_plan(transaction.connection(), run.id, plan_version);
  if (!toml) {
    return;
  }
  auto shares = layer_shares(*toml, run.registration.sites, run.registration.layers);
  transaction.on_commit([this, id = run.id, shares = std::move(shares)] {
    metrics_.update_run(id, [&](RunNumbers& numbers) { record_layers(numbers, shares); });
  });
}

void RunCache::stream(LedgerTransaction& transaction, int64_t run, const std::string& type,
                      const std::string& body) {
  const int64_t id = ledger::insert_stream(transaction.connection(), now(), run, type, body);
  transaction.on_commit([this, event = make_stream_event(id, run, type, body)] {
    bells_.tail.push(event);
    bells_.stream.ring();
  });
}

}  // namespace gnomon
