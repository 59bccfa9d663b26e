#include "tests/robustness/trainer.h"

#include <fmt/format.h>

#include <algorithm>

#include "protocol/json.h"
#include "tests/support/words.h"

namespace gnomon::robustness {
namespace {

bool same_order(const Directive& a, const Directive& b) {
  return a.kind == b.kind && a.plan == b.plan && a.plan_version == b.plan_version &&
         a.to_step == b.to_step && a.checkpoint_uri == b.checkpoint_uri && a.reason == b.reason;
}

}  // namespace

Trainer::Trainer(Scene& scene, const RunScenario& scenario)
    : scene_(scene),
      scenario_(scenario),
      draw_(scenario.seed, 1000 + static_cast<uint64_t>(scenario.number)),
      endpoint_(scene, scenario.name()) {}

void Trainer::violation(const std::string& what) {
  scene_.record.violation(fmt::format("{}: {}", scenario_.name(), what));
}

template <typename Message>
std::optional<Endpoint::Answer> Trainer::report(const std::string& where, const Message& message) {
  std::optional<Endpoint::Answer> answer =
      endpoint_.insist("POST", path_ + where, to_json(message));
  if (answer && answer->response.status != 200) {
    violation(fmt::format("POST {} was refused: {} {}", where, answer->response.status,
                          answer->response.body));
    return std::nullopt;
  }
  return answer;
}

template <typename Message>
bool Trainer::report_new(const std::string& where, const Message& message, int64_t facts,
                         int64_t* accepted) {
  const std::optional<Endpoint::Answer> answer = report(where, message);
  if (!answer) return false;
  const auto ack = from_json<ReportAck>(answer->response.body);
  const bool fits = ack.accepted + ack.repeated == facts && ack.accepted >= 0 && ack.repeated >= 0;
  if (!fits || (answer->sure && ack.repeated != 0)) {
    violation(fmt::format("of {} new facts at {} {} were accepted and {} repeated", facts, where,
                          ack.accepted, ack.repeated));
  }
  if (accepted != nullptr) *accepted = ack.accepted;
  return true;
}

bool Trainer::begin() {
  const std::optional<Endpoint::Answer> answer =
      endpoint_.insist("POST", "/v1/runs", to_json(registration_of(scenario_)));
  if (!answer || answer->response.status != 200) {
    if (answer) violation("was not registered: " + answer->response.body);
    return false;
  }
  const std::string run = from_json<RunRegistered>(answer->response.body).run;
  const int64_t id = std::stoll(run.substr(run.find('-') + 1));
  scene_.record.of(scenario_.number, [&](RunRecord& record) {
    if (record.id != 0 && record.id != id) violation("was registered under another id");
    record.id = id;
  });
  path_ = "/v1/runs/" + run;
  return true;
}

bool Trainer::start_attempt(int64_t base_step, const std::string& cause) {
  const AttemptStart start{attempt_ + 1, base_step, test::any_word(cause), plan_version_, 1.0};
  const auto note = [&](Fate fate) {
    scene_.record.of(scenario_.number, [&](RunRecord& record) {
      record.attempts[start.attempt] = {start, fate};
    });
  };
  note(Fate::kSent);
  if (!report_new("/attempts", start, 1)) return false;
  note(Fate::kAcknowledged);
  attempt_ = start.attempt;
  step_ = checkpoint_ = base_step;
  return send_checkpoint();
}

bool Trainer::send_steps(int64_t to) {
  StepBatch batch;
  for (int64_t step = step_ + 1; step <= to; ++step) {
    batch.steps.push_back(step_of(scenario_, attempt_, step, plan_version_));
  }
  const auto note = [&](Fate fate, int64_t accepted) {
    scene_.record.of(scenario_.number, [&](RunRecord& record) {
      for (const StepReport& step : batch.steps) {
        record.steps[{step.attempt, step.step}] = {step.plan_version, fate};
      }
      record.accepted_steps += accepted;
    });
  };
  note(Fate::kSent, 0);
  int64_t accepted = 0;
  if (!report_new("/steps", batch, std::ssize(batch.steps), &accepted)) return false;
  note(Fate::kAcknowledged, accepted);
  step_ = to;
  return true;
}

bool Trainer::send_checkpoint() {
  const CheckpointReport checkpoint = checkpoint_of(scenario_, attempt_, step_, plan_version_);
  const auto note = [&](Fate fate) {
    scene_.record.of(scenario_.number, [&](RunRecord& record) {
      record.checkpoints[{attempt_, step_}] = {plan_version_, fate};
    });
  };
  note(Fate::kSent);
  if (!report_new("/checkpoints", checkpoint, 1)) return false;
  note(Fate::kAcknowledged);
  checkpoint_ = step_;
  return true;
}

bool Trainer::send_notice() {
  const auto note = [&](Fate fate) {
    scene_.record.of(scenario_.number, [&](RunRecord& record) {
      record.notices[{attempt_, step_}] = fate;
    });
  };
  note(Fate::kSent);
  if (!report_new("/notices", notice_of(scenario_, attempt_, step_), 1)) return false;
  note(Fate::kAcknowledged);
  return true;
}

// What was acknowledged is known, whatever has happened since.
bool Trainer::ask_for_old() {
  StepBatch batch;
  scene_.record.of(scenario_.number, [&](RunRecord& record) {
    for (const auto& [key, sent] : record.steps) {
      if (sent.second == Fate::kAcknowledged && batch.steps.size() < 20) {
        batch.steps.push_back(step_of(scenario_, key.first, key.second, sent.first));
      }
    }
  });
  const std::optional<Endpoint::Answer> answer = report("/steps", batch);
  if (!answer) return false;
  const auto ack = from_json<ReportAck>(answer->response.body);
  if (ack.accepted != 0 || ack.repeated != std::ssize(batch.steps)) {
    violation(fmt::format("of {} steps that had been acknowledged {} were new", batch.steps.size(),
                          ack.accepted));
  }
  return true;
}

// The same number is the same order, and none that has ended comes again.
std::string Trainer::look_at(const Directive& directive) {
  return scene_.record.of(scenario_.number, [&](RunRecord& record) {
    const auto [known, fresh] = record.told.emplace(directive.number, directive);
    const std::string name = fmt::format("{}: directive {}", scenario_.name(), directive.number);
    std::string wrong;
    if (!fresh && !same_order(known->second, directive)) wrong = " was another order before";
    const auto applied = record.applied.find(directive.number);
    if (applied != record.applied.end() && applied->second == Fate::kAcknowledged) {
      wrong = " is given again, though it was acknowledged as applied";
    }
    if (!record.finished.empty()) wrong = " is given after the end of the run was acknowledged";
    return wrong.empty() ? wrong : name + wrong;
  });
}

bool Trainer::acknowledge(const Directive& directive, const std::string& state) {
  const DirectiveAck ack{test::any_word(state), attempt_, step_, "", 1.0};
  const std::optional<Endpoint::Answer> answer = endpoint_.insist(
      "POST", fmt::format("{}/directives/{}/ack", path_, directive.number), to_json(ack));
  if (!answer) return false;
  if (answer->response.status != 200) {
    violation(fmt::format("directive {} could not be {}: {}", directive.number, state,
                          answer->response.body));
    return false;
  }
  return from_json<Directive>(answer->response.body).state == state;
}

bool Trainer::roll_back(const Directive& directive) {
  if (!directive.plan.empty()) plan_version_ = directive.plan_version;
  return start_attempt(directive.to_step, "rollback");
}

bool Trainer::carry_out(const Directive& directive) {
  const bool wanted = acknowledge(directive, "acknowledged");
  if (scene_.late()) return false;
  after_ = directive.number;
  if (!wanted) return true;  // it expired meanwhile
  const auto note = [&](Fate fate) {
    scene_.record.of(scenario_.number,
                     [&](RunRecord& record) { record.applied[directive.number] = fate; });
  };
  note(Fate::kSent);
  if (!acknowledge(directive, "applied")) return false;
  note(Fate::kAcknowledged);
  scene_.record.count("directives applied");
  if (directive.kind == "rollback") return roll_back(directive);
  if (directive.kind == "set_plan") plan_version_ = directive.plan_version;
  if (directive.kind == "checkpoint_now" && step_ != checkpoint_) return send_checkpoint();
  if (directive.kind == "stop") stopped_ = true;
  return true;
}

bool Trainer::follow_directives() {
  // Now and then from the beginning, as a trainer does that has lost its memory.
  const int64_t after = draw_.chance(0.3) ? 0 : after_;
  const std::optional<Endpoint::Answer> answer =
      endpoint_.insist("GET", fmt::format("{}/directives?after={}&wait=0", path_, after), {});
  if (!answer) return false;
  if (answer->response.status != 200) {
    violation("no directives: " + answer->response.body);
    return false;
  }
  for (const Directive& directive : from_json<DirectiveList>(answer->response.body).directives) {
    if (std::string wrong = look_at(directive); !wrong.empty()) scene_.record.violation(wrong);
    if (directive.number > after_ && !stopped_ && !carry_out(directive)) return !scene_.late();
  }
  return true;
}

bool Trainer::finish(const std::string& outcome) {
  if (!report("/finished", finish_of(scenario_, outcome, step_))) return false;
  scene_.record.of(scenario_.number, [&](RunRecord& record) { record.finished = outcome; });
  follow_directives();  // there must be none
  return false;
}

bool Trainer::turn() {
  if (path_.empty()) return begin() && start_attempt(0, "start");
  if (stopped_) return finish("stopped");
  if (step_ >= scenario_.steps) return finish("completed");
  const int64_t to = std::min({step_ + draw_.between(1, 5), scenario_.steps,
                               (step_ / kCheckpointEvery + 1) * kCheckpointEvery});
  if (!send_steps(to)) return false;
  if (step_ % kCheckpointEvery == 0) {
    if (!send_checkpoint()) return false;
    if (draw_.chance(scenario_.restart_chance) && (!begin() || !start_attempt(step_, "restart"))) {
      return false;
    }
  }
  if (draw_.chance(0.05) && !send_notice()) return false;
  if (draw_.chance(0.1) && !ask_for_old()) return false;
  return follow_directives();
}

}  // namespace gnomon::robustness
