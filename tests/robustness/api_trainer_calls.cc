// What the fuzzer of the API says as a trainer.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <limits>

#include "protocol/json.h"
#include "tests/robustness/api_player.h"
#include "tests/support/words.h"

namespace gnomon::robustness {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::array<double, 12> kNumbers = {kNan, kInfinity, -kInfinity, 1e308, -1e308, 0,
                                             -1,   5e-324,    1e-300,     1e18,  -0.0,   1e9};
constexpr std::array<int64_t, 10> kIntegers = {
    0,         -1,       -5, 1, 999, int64_t{1} << 53, 1'000'000'000'000, 1'000'000'000'001,
    INT64_MAX, INT64_MIN};
constexpr int64_t kFarAway = 1'000'000'000;  // such steps are left behind by a new attempt

std::string strange_text(Draw& draw) {
  static const std::array<std::string, 6> kTexts = {"",
                                                    std::string(300, 'a'),
                                                    "\xe2\x80\xae"
                                                    "abc",
                                                    "tab\there",
                                                    "not hexadecimal",
                                                    "0"};
  return draw.one_of(kTexts);
}

}  // namespace

void ApiPlayer::register_run(ApiRun& run) {
  const HttpResponse response =
      must(200, "trainer", "POST", "/v1/runs", to_json(registration_of(run.scenario)));
  const int64_t id = run_id_of(from_json<RunRegistered>(response.body).run);
  if (run.registered() && run.id != id) {
    broken("a run is registered once", fmt::format("run-{} was registered as run-{}", run.id, id));
  }
  if (!run.registered()) run.life = "live";
  run.id = id;
}

void ApiPlayer::register_otherwise(Draw& draw) {
  ApiRun& run = drawn_run(draw);
  if (!run.registered() || draw.chance(0.4)) return register_run(run);
  RunRegistration registration = registration_of(run.scenario);
  switch (draw.between(0, 6)) {
    case 0:
      registration.sites.emplace_back("one.more.site");
      break;
    case 1:
      registration.layers = -1;
      break;
    case 2:
      registration.checkpoint_every = draw.one_of(kIntegers);
      break;
    case 3:
      registration.total_steps = draw.one_of(kIntegers);
      break;
    case 4:
      registration.name = strange_text(draw);
      break;
    case 5:
      registration.base_plan = "no plan";
      break;
    default:
      registration.tokens_per_step = draw.one_of(kIntegers);
  }
  const HttpResponse response = ask("trainer", "POST", "/v1/runs", to_json(registration));
  if (response.status != 200) return;
  const int64_t id = run_id_of(from_json<RunRegistered>(response.body).run);
  if (model_.run_of(id) == &run) return;
  if (registration.name == run.scenario.name()) broken("a run is registered once", lines_.back());
  // A strange name was accepted: its run stays in the list for the rest of the sequence.
  for (ApiRun& known : model_.runs) {
    if (known.id == id) return;
  }
  ApiRun other;
  other.scenario = run.scenario;
  other.scenario.number = static_cast<int>(model_.runs.size()) + 100;
  other.id = id;
  other.life = "live";
  model_.runs.push_back(other);
}

bool ApiPlayer::begin_attempt(ApiRun& run, int64_t base_step, const std::string& cause) {
  const AttemptStart start{run.newest_attempt() + 1, base_step, test::any_word(cause),
                           run.plan_version, 1.0};
  const std::string target = run.path() + "/attempts";
  if (run.life == "completed") {
    must(409, "trainer", "POST", target, to_json(start));
    return false;
  }
  const HttpResponse response = must(200, "trainer", "POST", target, to_json(start));
  if (from_json<ReportAck>(response.body).accepted != 1) {
    broken("a new fact is accepted once", lines_.back());
  }
  run.attempts[start.attempt] = start;
  run.life = "live";
  return true;
}

void ApiPlayer::note_step(ApiRun& run, const StepReport& step) {
  run.steps.try_emplace({step.attempt, step.step}, step);
  if (run.ended()) run.life_is_known = false;  // it may go on
}

// All of them in order, of the newest attempt, and with values as they should be.
void ApiPlayer::send_steps(ApiRun& run, const std::vector<StepReport>& steps) {
  if (steps.empty()) return;
  int64_t fresh = 0;
  for (const StepReport& step : steps) {
    if (!run.steps.contains({step.attempt, step.step})) ++fresh;
  }
  const HttpResponse response =
      must(200, "trainer", "POST", run.path() + "/steps", to_json(StepBatch{steps}));
  const auto ack = from_json<ReportAck>(response.body);
  if (ack.accepted != fresh || ack.repeated != std::ssize(steps) - fresh) {
    broken("a new fact is accepted once",
           fmt::format("{} of {} steps are new: {}", fresh, steps.size(), lines_.back()));
  }
  for (const StepReport& step : steps) note_step(run, step);
}

void ApiPlayer::send_checkpoint(ApiRun& run, const CheckpointReport& checkpoint) {
  // One that is known is sent as it is known.
  const auto [known, fresh] =
      run.checkpoints.try_emplace({checkpoint.attempt, checkpoint.step}, checkpoint);
  const HttpResponse response =
      must(200, "trainer", "POST", run.path() + "/checkpoints", to_json(known->second));
  if (from_json<ReportAck>(response.body).accepted != (fresh ? 1 : 0)) {
    broken("a new fact is accepted once", lines_.back());
  }
}

// As a trainer does it: the steps to the next checkpoint, and that.
void ApiPlayer::train(Draw& draw) {
  ApiRun& run = drawn_known_run(draw);
  if (run.attempts.empty() && !begin_attempt(run, 0, "start")) return;
  if (run.newest_step() > kFarAway && !begin_attempt(run, draw.between(0, 20), "restart")) return;
  const int64_t attempt = run.newest_attempt();
  if (run.newest_step() == run.attempts[attempt].base_step) {
    send_checkpoint(run, checkpoint_of(run.scenario, attempt, run.newest_step(), run.plan_version));
  }
  const int64_t from = run.newest_step() + 1;
  const int64_t to = (from + kCheckpointEvery - 1) / kCheckpointEvery * kCheckpointEvery;
  std::vector<StepReport> steps;
  for (int64_t step = from; step <= to; ++step) {
    steps.push_back(step_of(run.scenario, attempt, step, run.plan_version));
  }
  send_steps(run, steps);
  send_checkpoint(run, checkpoint_of(run.scenario, attempt, to, run.plan_version));
}

void ApiPlayer::attempts(Draw& draw) {
  ApiRun& run = drawn_known_run(draw);
  const int64_t newest = run.newest_attempt();
  const std::string target = run.path() + "/attempts";
  switch (draw.between(0, 5)) {
    case 0:
    case 1:
      begin_attempt(run, draw.chance(0.5) ? std::min(run.newest_step(), kFarAway) : 0,
                    draw.chance(0.5) ? "restart" : "rollback");
      return;
    case 2:
      if (newest == 0) return;
      if (const auto ack = from_json<ReportAck>(
              must(200, "trainer", "POST", target, to_json(run.attempts[newest])).body);
          ack.repeated != 1) {
        broken("a known fact is a repetition", lines_.back());
      }
      return;
    case 3: {  // known, with another value
      if (newest == 0) return;
      AttemptStart other = run.attempts[newest];
      other.base_step += 1;
      must(409, "trainer", "POST", target, to_json(other));
      return;
    }
    case 4:  // a gap
      must_refuse("trainer", "POST", target,
                  to_json(AttemptStart{newest + draw.between(2, 9), 0, "restart", 1, 1.0}));
      return;
    default: {
      AttemptStart strange{newest + 1, draw.one_of(kIntegers), "restart", run.plan_version, 1.0};
      if (draw.chance(0.3)) strange.time = draw.one_of(kNumbers);
      if (draw.chance(0.3)) strange.plan_version = draw.one_of(kIntegers);
      if (draw.chance(0.2)) strange.cause = test::any_word(strange_text(draw));
      if (draw.chance(0.2)) strange.attempt = draw.one_of(kIntegers);
      const bool fresh = !run.attempts.contains(strange.attempt);
      if (ask("trainer", "POST", target, to_json(strange)).status != 200 || !fresh) return;
      run.attempts[strange.attempt] = strange;
      run.life = "live";
    }
  }
}

void ApiPlayer::steps(Draw& draw) {
  ApiRun& run = drawn_known_run(draw);
  const int64_t attempt = run.newest_attempt();
  const std::string target = run.path() + "/steps";
  if (attempt == 0) {
    must_refuse("trainer", "POST", target, to_json(StepBatch{{step_of(run.scenario, 1, 1, 1)}}));
    return;
  }
  if (run.newest_step() > kFarAway && !begin_attempt(run, 0, "restart")) return;
  const int64_t newest = run.newest_step();
  std::vector<StepReport> batch;
  switch (draw.between(0, 5)) {
    case 0:
    case 1:  // the next one, or a few
      for (int64_t step = newest + 1, last = newest + draw.between(1, 4); step <= last; ++step) {
        batch.push_back(step_of(run.scenario, run.newest_attempt(), step, run.plan_version));
      }
      return send_steps(run, batch);
    case 2:  // behind a gap
      batch.push_back(step_of(run.scenario, run.newest_attempt(), newest + draw.between(2, 40),
                              run.plan_version));
      return send_steps(run, batch);
    case 3:  // known ones of any attempt, in any order
      for (int i = 0; i < 3 && !run.steps.empty(); ++i) {
        auto at = run.steps.begin();
        std::advance(at, draw.between(0, std::ssize(run.steps) - 1));
        batch.push_back(at->second);
      }
      return send_steps(run, batch);
    case 4: {  // a new one, and a known one with another value: nothing of them is recorded
      if (run.steps.empty()) return;
      auto at = run.steps.begin();
      std::advance(at, draw.between(0, std::ssize(run.steps) - 1));
      StepReport other = at->second;
      draw.chance(0.5) ? other.loss = 17.25 : other.grad_norm = 17.25;
      batch.push_back(step_of(run.scenario, run.newest_attempt(), newest + 1, run.plan_version));
      batch.push_back(other);
      must(409, "trainer", "POST", target, to_json(StepBatch{batch}));
      return;
    }
    default: {  // late: of an attempt before, or one that was left out
      const int64_t late = draw.between(1, run.newest_attempt());
      const int64_t base = run.attempts.contains(late) ? run.attempts[late].base_step : 0;
      const StepReport step =
          step_of(run.scenario, late, base + draw.between(1, 30), run.plan_version);
      if (base > kFarAway || run.steps.contains({late, step.step})) return;
      send_steps(run, {step});
    }
  }
}

// Whatever is not refused must be on record and do no harm.
void ApiPlayer::extreme_step(Draw& draw) {
  ApiRun& run = drawn_known_run(draw);
  if (run.attempts.empty() && !begin_attempt(run, 0, "start")) return;
  StepReport step = step_of(run.scenario, run.newest_attempt(),
                            std::min(run.newest_step(), kFarAway) + 1, run.plan_version);
  for (int64_t changes = draw.between(1, 2); changes > 0; --changes) {
    switch (draw.between(0, 9)) {
      case 0:
        step.loss = draw.one_of(kNumbers);
        break;
      case 1:
        step.grad_norm = draw.one_of(kNumbers);
        break;
      case 2:
        step.learning_rate = draw.one_of(kNumbers);
        break;
      case 3:
        step.step_seconds = draw.one_of(kNumbers);
        break;
      case 4:
        step.time = draw.one_of(kNumbers);
        break;
      case 5:
        step.tokens = draw.one_of(kIntegers);
        break;
      case 6:
        step.plan_version = draw.one_of(kIntegers);
        break;
      case 7:
        step.weights_hash = strange_text(draw);
        break;
      case 8:
        step.attempt = draw.one_of(kIntegers);
        break;
      default:
        step.step = draw.one_of(kIntegers);
    }
  }
  if (run.steps.contains({step.attempt, step.step})) return;
  const HttpResponse response =
      ask("trainer", "POST", run.path() + "/steps", to_json(StepBatch{{step}}));
  if (response.status == 200) note_step(run, step);
}

void ApiPlayer::checkpoints(Draw& draw) {
  ApiRun& run = drawn_known_run(draw);
  const int64_t attempt = run.newest_attempt();
  const std::string target = run.path() + "/checkpoints";
  if (attempt == 0) {
    must_refuse("trainer", "POST", target, to_json(checkpoint_of(run.scenario, 1, 0, 1)));
    return;
  }
  if (!run.checkpoints.empty() && draw.chance(0.3)) {
    return send_checkpoint(run, run.checkpoints.begin()->second);
  }
  CheckpointReport report =
      checkpoint_of(run.scenario, attempt, std::min(run.newest_step(), kFarAway), run.plan_version);
  const bool known = run.checkpoints.contains({report.attempt, report.step});
  switch (draw.between(0, 5)) {
    case 0:
      report.step = draw.one_of(kIntegers);
      break;
    case 1:
      report.uri = strange_text(draw);
      break;
    case 2:
      report.weights_hash = strange_text(draw);
      break;
    case 3:
      report.bytes = draw.one_of(kIntegers);
      break;
    case 4:
      report.plan_version = draw.one_of(kIntegers);
      break;
    default:
      if (!known) send_checkpoint(run, report);
      return;
  }
  if (ask("trainer", "POST", target, to_json(report)).status == 200) {
    run.checkpoints.try_emplace({report.attempt, report.step}, report);
  }
}

void ApiPlayer::finished(Draw& draw) {
  ApiRun& run = drawn_known_run(draw);
  static const std::array<std::string, 4> kOutcomes = {"stopped", "failed", "completed", "won"};
  // A completed run is over for good, which leaves little to play.
  const int64_t which = draw.between(0, 19);
  const std::string outcome = kOutcomes[which < 9 ? 0 : which < 17 ? 1 : which < 19 ? 2 : 3];
  RunFinished report = finish_of(run.scenario, outcome, run.newest_step());
  const bool extreme = draw.chance(0.15);
  if (extreme) {
    report.final_loss = draw.one_of(kNumbers);
    report.train_seconds = draw.one_of(kNumbers);
    report.step = draw.one_of(kIntegers);
  }
  const std::string target = run.path() + "/finished";
  if (outcome == "won") return must_refuse("trainer", "POST", target, to_json(report));
  if (run.life != "live" && run.life != outcome) {
    must_refuse("trainer", "POST", target, to_json(report));
    return;
  }
  const HttpResponse response = ask("trainer", "POST", target, to_json(report));
  if (response.status != 200 && !extreme) {
    broken("a run's end is accepted", lines_.back());
  }
  if (response.status == 200) run.life = outcome;
}

void ApiPlayer::notices(Draw& draw) {
  ApiRun& run = drawn_known_run(draw);
  TrainerNotice notice = notice_of(run.scenario, std::max<int64_t>(run.newest_attempt(), 1),
                                   std::min(run.newest_step(), kFarAway));
  notice.text += fmt::format(" ({})", draw.between(0, 3));
  const bool extreme = draw.chance(0.4);
  if (extreme) {
    switch (draw.between(0, 4)) {
      case 0:
        notice.kind = test::any_word(strange_text(draw));
        break;
      case 1:
        notice.step = draw.one_of(kIntegers);
        break;
      case 2:
        notice.attempt = draw.one_of(kIntegers);
        break;
      case 3:
        notice.time = draw.one_of(kNumbers);
        break;
      default:
        notice.text = std::string(static_cast<size_t>(draw.between(0, 1)) * 20'000, 'x');
    }
  }
  const HttpResponse response = ask("trainer", "POST", run.path() + "/notices", to_json(notice));
  if (response.status == 200) run.notices.insert(notice.text);
  if (response.status != 200 && !extreme) broken("a notice is accepted", lines_.back());
}

void ApiPlayer::statistics(Draw& draw) {
  ApiRun& run = drawn_known_run(draw);
  StatisticsReport report;
  report.attempt = draw.chance(0.2) ? draw.one_of(kIntegers) : 1;
  report.step = draw.chance(0.2) ? draw.one_of(kIntegers) : draw.between(1, 50);
  report.plan_version = 1;
  report.time = 1;
  StatisticsRow row;
  row.site = draw.chance(0.2) ? "nowhere" : registration_of(run.scenario).sites.front();
  row.tensor = test::any_word(draw.chance(0.1) ? strange_text(draw) : "weight");
  row.elements = draw.chance(0.2) ? draw.one_of(kIntegers) : 64;
  for (std::optional<double>& number : row.numbers) {
    if (draw.chance(0.3)) number = draw.one_of(kNumbers);
  }
  report.rows.push_back(row);
  ask("trainer", "POST", run.path() + "/statistics", to_json(report));
}

void ApiPlayer::poll_directives(Draw& draw) {
  ApiRun& run = drawn_known_run(draw);
  const int64_t after = draw.chance(0.2) ? draw.between(0, 50) : 0;
  const HttpResponse response =
      ask("trainer", "GET", fmt::format("{}/directives?after={}&wait=0", run.path(), after));
  if (response.status != 200) return;  // who asks may have to say more
  for (const Directive& directive : from_json<DirectiveList>(response.body).directives) {
    run.directives[directive.number] = directive;
  }
}

void ApiPlayer::acknowledge(Draw& draw) {
  ApiRun& run = drawn_known_run(draw);
  static const std::array<std::string, 5> kStates = {"acknowledged", "applied", "applied",
                                                     "rejected", "forgotten"};
  DirectiveAck ack{test::any_word(draw.one_of(kStates)), run.newest_attempt(), run.newest_step(),
                   "", 1.0};
  if (ack.state == "rejected") ack.reason = "not now";
  if (draw.chance(0.1)) ack.attempt = draw.one_of(kIntegers);
  if (draw.chance(0.1)) ack.step = draw.one_of(kIntegers);
  if (draw.chance(0.1)) ack.time = draw.one_of(kNumbers);
  int64_t number = draw.between(0, 9);
  if (!run.directives.empty() && draw.chance(0.9)) {
    auto at = run.directives.begin();
    std::advance(at, draw.between(0, std::ssize(run.directives) - 1));
    number = at->first;
  }
  const HttpResponse response =
      ask("trainer", "POST", fmt::format("{}/directives/{}/ack", run.path(), number), to_json(ack));
  if (response.status != 200) return;
  const auto known = run.directives.find(number);
  const auto now = from_json<Directive>(response.body);
  if (known == run.directives.end() || now.state != "applied") return;
  if (!now.plan.empty()) run.plan_version = now.plan_version;
  if (now.kind == "rollback" && draw.chance(0.8)) begin_attempt(run, now.to_step, "rollback");
}

}  // namespace gnomon::robustness
