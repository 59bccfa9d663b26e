#include "controller/supervisor.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cmath>
#include <limits>

#include "controller/effects.h"
#include "controller/layers.h"
#include "controller/metrics/totals.h"
#include "controller/refusal.h"
#include "controller/replay_join.h"
#include "protocol/json.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

constexpr double kTickAgainSeconds = 60;          // after a tick that failed or changed nothing
constexpr double kStreamKeepSeconds = 7 * 86400;  // rows of the stream
constexpr double kStreamTrimSeconds = 60;         // between two looks for old ones
constexpr int64_t kStreamTrimMax = 1000;          // rows in one write

}  // namespace

Supervisor::Supervisor(Metrics& metrics, Bells& bells, SupervisorOptions options,
                       std::function<double()> now, std::function<double()> steady_now)
    : metrics_(metrics),
      bells_(bells),
      options_(std::move(options)),
      now_(std::move(now)),
      steady_now_(std::move(steady_now)) {}

void Supervisor::restore(Connection& connection) {
  for (int64_t id : ledger::run_ids(connection)) {
    ledger::RunRow row = ledger::load_run(connection, id).value();
    double left = row.finished_at ? *row.finished_at + options_.series_keep_seconds - now() : 0;
    if (left < 0) {
      continue;  // ended long ago
    }
    try {
      restore_run(connection, row);
    } catch (const Error& error) {
      spdlog::error("{} cannot be read from the ledger and is not supervised: {}", run_name(id),
                    error.what());
    }
    if (row.finished_at) {
      metrics_.drop_run_at(id, steady_now() + left);
    }
  }
  metrics_.set_replays_queued(ledger::count_queued_replays(connection));
}

void Supervisor::restore_run(Connection& connection, const ledger::RunRow& row) {
  metrics_.start_run(row.id, row.name + "/" + row.job_id, load_run_totals(connection, row.id));
  std::optional<ledger::StateRow> state = ledger::load_state(connection, row.id);
  if (state && row.state == "live") {
    deadlines_.set(row.id, decide::next_deadline(decide::state_from_json(state->body)));
  }
}

Supervisor::Run& Supervisor::load(LedgerTransaction& transaction, int64_t id) {
  // Whatever made a write fail, the next one starts from what the ledger has.
  transaction.on_rollback([this, id] { runs_.erase(id); });
  if (auto found = runs_.find(id); found != runs_.end()) {
    return found->second;
  }
  Connection& connection = transaction.connection();
  std::optional<ledger::RunRow> row = ledger::load_run(connection, id);
  if (!row) {
    throw unknown_run(run_name(id));
  }
  Run run;
  run.id = id;
  run.label = row->name + "/" + row->job_id;
  run.life = row->state;
  try {
    run.registration = from_json<RunRegistration>(row->registration);
    run.policy = decide::Policy::parse(row->policy, fmt::format("the policy of {}", run_name(id)));
    if (std::optional<ledger::StateRow> state = ledger::load_state(connection, id)) {
      run.state = decide::state_from_json(state->body);
      run.seq = state->seq;
    }
  } catch (const Error& error) {
    // Not the sender's fault, whatever kind of error it is.
    throw Error(fmt::format("{} cannot be read from the ledger: {}", run.label, error.what()));
  }
  return runs_.emplace(id, std::move(run)).first->second;
}

decide::Outcome Supervisor::ask_core(Run& run, const decide::Event& event, double time) {
  try {
    return decide::decide(std::move(run.state), event, run.policy, time);
  } catch (const std::exception& error) {
    // The same report will fail again; the sender must be able to tell that from its own fault.
    throw Error(fmt::format("the decision core failed on {} of {}, nothing of it was recorded: {}",
                            decide::event_type(event), run.label, error.what()));
  }
}

std::vector<decide::Effect> Supervisor::hear(LedgerTransaction& transaction, Run& run,
                                             const decide::Event& event) {
  double time = now();
  ledger::EventRow row{run.seq + 1,  time,         decide::event_type(event),
                       std::nullopt, std::nullopt, std::nullopt};
  if (const auto* step = std::get_if<decide::StepReported>(&event)) {
    row.attempt = step->attempt;
    row.step = step->step;
  } else {
    row.body = decide::event_to_json(event);
  }
  ledger::insert_event(transaction.connection(), run.id, row);
  run.seq = row.seq;
  decide::Outcome outcome = ask_core(run, event, time);
  run.state = std::move(outcome.state);
  EffectContext context{transaction, metrics_, bells_, run.id, run.seq, time};
  for (const decide::Effect& effect : outcome.effects) {
    apply_effect(context, effect);
  }
  return std::move(outcome.effects);
}

void Supervisor::save(LedgerTransaction& transaction, Run& run) {
  ledger::save_state(transaction.connection(), run.id, {run.seq, decide::state_to_json(run.state)});
  transaction.on_commit([this, id = run.id, phase = decide::phase_name(run.state),
                         money = money_numbers(run.state, run.policy),
                         deadline = decide::next_deadline(run.state)] {
    metrics_.update_run(id, [&](RunSeries& series) {
      series.set_phase(phase);
      series.set_money(money);
    });
    deadlines_.set(id, deadline);
  });
}

void Supervisor::tick(LedgerTransaction& transaction, int64_t id) {
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
  save(transaction, run);
  if (decide::next_deadline(run.state) <= time) {
    spdlog::error("the decision core of {} asks for a moment that has passed", run.label);
    transaction.on_commit([this, id, time] { deadlines_.set(id, time + kTickAgainSeconds); });
  }
}

void Supervisor::trim_stream(LedgerTransaction& transaction) {
  int64_t trimmed =
      ledger::trim_stream(transaction.connection(), now() - kStreamKeepSeconds, kStreamTrimMax);
  double pause = trimmed == kStreamTrimMax ? 0 : kStreamTrimSeconds;
  transaction.on_commit([this, at = steady_now() + pause] { next_trim_ = at; });
}

const decide::Policy& Supervisor::policy(LedgerTransaction& transaction, int64_t run) {
  return load(transaction, run).policy;
}

void Supervisor::set_policy(LedgerTransaction& transaction, int64_t id, const std::string& toml) {
  Run& run = load(transaction, id);
  run.policy = decide::Policy::parse(toml, "policy");
  ledger::set_policy(transaction.connection(), id, toml);
  ledger::insert_audit(transaction.connection(), now(), id, "policy_changed", toml);
}

void Supervisor::set_default_policy(const std::string& toml) {
  std::lock_guard lock(default_policy_mutex_);
  options_.default_policy = toml;
}

Fingerprint Supervisor::fingerprint_of(Connection& connection, const Run& run, int64_t attempt) {
  std::optional<ledger::AttemptRow> row = ledger::find_attempt(connection, run.id, attempt);
  return row && row->fingerprint ? from_json<Fingerprint>(*row->fingerprint)
                                 : run.registration.fingerprint;
}

void Supervisor::replay_finished(LedgerTransaction& transaction, const ledger::ReplayRow& replay,
                                 const std::string& verifier, const ReplayResult& result) {
  Run& run = load(transaction, replay.run);
  Connection& connection = transaction.connection();
  ledger::WindowRow window = ledger::find_window(connection, replay.run, replay.window).value();
  double time = now();
  ledger::insert_result(connection, replay, verifier, to_json(result.fingerprint), result, time);
  std::vector<StepReport> run_steps =
      ledger::steps_between(connection, replay.run, window.attempt, window.start_step + 1,
                            window.start_step + window.steps);
  decide::ReplayFinished event =
      join_replay(replay, result, run_steps, fingerprint_of(connection, run, window.attempt),
                  verifier, replay.on_trainer || is_trainer(verifier));
  hear(transaction, run, event);
  save(transaction, run);
  double seconds = result.replay_seconds + result.eval_seconds;
  std::optional<std::pair<double, double>> shadow;
  if (replay.arm == "bf16" && replay.purpose == "shadow" && !event.losses.empty() &&
      std::isfinite(event.run_losses.back())) {
    shadow = {event.losses.back(), event.run_losses.back()};
  }
  transaction.on_commit([this, id = run.id, seconds, shadow] {
    metrics_.update_run(id, [&](RunSeries& series) {
      series.verify_seconds(seconds);
      if (shadow) {
        series.set_shadow(shadow->first, shadow->second);
      }
    });
  });
}

void Supervisor::replay_failed(LedgerTransaction& transaction, const ledger::ReplayRow& replay,
                               const std::string& reason) {
  Run& run = load(transaction, replay.run);
  hear(transaction, run, decide::ReplayFailed{replay.replay, replay.window, replay.arm, reason});
  save(transaction, run);
}

void Supervisor::show_layers(LedgerTransaction& transaction, Run& run, int64_t plan_version) {
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
    metrics_.update_run(id, [&](RunSeries& series) { series.set_layers(shares); });
  });
}

void Supervisor::stream(LedgerTransaction& transaction, int64_t run, const std::string& type,
                        const std::string& body) {
  const int64_t id = ledger::insert_stream(transaction.connection(), now(), run, type, body);
  transaction.on_commit([this, event = make_stream_event(id, run, type, body)] {
    bells_.tail.push(event);
    bells_.stream.ring();
  });
}

}  // namespace gnomon
