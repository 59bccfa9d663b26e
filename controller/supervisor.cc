#include "controller/supervisor.h"

#include <fmt/format.h>

#include "controller/effects.h"
#include "controller/layers.h"
#include "controller/metrics/totals.h"
#include "controller/refusal.h"
#include "controller/replay_join.h"
#include "protocol/json.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_runs.h"

namespace gnomon {

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
    metrics_.start_run(id, row.name + "/" + row.job_id, load_run_totals(connection, id));
    if (row.finished_at) {
      metrics_.drop_run_at(id, steady_now() + left);
    }
  }
  metrics_.set_replays_queued(ledger::count_queued_replays(connection));
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
  run.registration = from_json<RunRegistration>(row->registration);
  run.policy = decide::Policy::parse(row->policy, fmt::format("the policy of {}", run_name(id)));
  if (std::optional<ledger::StateRow> state = ledger::load_state(connection, id)) {
    run.state = decide::state_from_json(state->body);
    run.seq = state->seq;
  }
  return runs_.emplace(id, std::move(run)).first->second;
}

void Supervisor::hear(LedgerTransaction& transaction, Run& run, const decide::Event& event) {
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
  decide::Outcome outcome = decide::decide(std::move(run.state), event, run.policy, time);
  run.state = std::move(outcome.state);
  EffectContext context{transaction, metrics_, bells_, run.id, run.seq, time};
  for (const decide::Effect& effect : outcome.effects) {
    apply_effect(context, effect);
  }
}

void Supervisor::save(LedgerTransaction& transaction, Run& run) {
  ledger::save_state(transaction.connection(), run.id, {run.seq, decide::state_to_json(run.state)});
  transaction.on_commit([this, id = run.id, phase = decide::phase_name(run.state)] {
    metrics_.update_run(id, [&](RunSeries& series) { series.set_phase(phase); });
  });
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
      join_replay(replay, result, run_steps, run.registration.fingerprint);
  hear(transaction, run, event);
  save(transaction, run);
  double seconds = result.replay_seconds + result.eval_seconds;
  std::optional<std::pair<double, double>> shadow;
  if (replay.arm == "bf16" && replay.purpose == "shadow" && !event.losses.empty()) {
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

DirectiveList Supervisor::deliver_directives(LedgerTransaction& transaction, int64_t id,
                                             int64_t after) {
  load(transaction, id);
  Connection& connection = transaction.connection();
  DirectiveList list{ledger::open_directives(connection, id, after)};
  for (Directive& directive : list.directives) {
    if (directive.state == "pending") {
      ledger::mark_delivered(connection, id, directive.number, now());
      directive.state = "delivered";
    }
  }
  return list;
}

Directive Supervisor::acknowledge(LedgerTransaction& transaction, int64_t id, int64_t number,
                                  const DirectiveAck& ack) {
  Run& run = load(transaction, id);
  Connection& connection = transaction.connection();
  std::optional<Directive> known = ledger::find_directive(connection, id, number);
  if (!known) {
    throw Refusal(404, "Unknown directive",
                  fmt::format("{} has no directive {}", run.label, number),
                  fmt::format("a number from 1 to {}", ledger::last_directive(connection, id)));
  }
  bool ends = ack.state == "applied" || ack.state == "rejected";
  if (!ends && ack.state != "acknowledged") {
    throw Refusal(400, "Value not accepted", fmt::format("state is \"{}\"", ack.state),
                  "acknowledged, applied or rejected");
  }
  if (known->state == ack.state) {
    return *known;
  }
  bool ended = known->state == "applied" || known->state == "rejected";
  if (ended) {
    std::string detail = fmt::format("directive {} of {} is {} and cannot become {}", number,
                                     run.label, known->state, ack.state);
    throw Refusal(409, "The directive has ended", detail, known->state,
                  AuditNote{id, "impossible_ack", detail});
  }
  if (ends) {
    ledger::end_directive(connection, id, number, ack, now());
    hear(transaction, run,
         decide::DirectiveChanged{number, ack.state, ack.attempt, ack.step, ack.reason});
    save(transaction, run);
  } else {
    ledger::acknowledge_directive(connection, id, number, now());
  }
  known->state = ack.state;
  stream(transaction, id, "directive", to_json(*known));
  return *known;
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
  ledger::insert_stream(transaction.connection(), now(), run, type, body);
  transaction.on_commit([this] { bells_.stream.ring(); });
}

}  // namespace gnomon
