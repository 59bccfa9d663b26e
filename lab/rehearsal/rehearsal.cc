#include "lab/rehearsal/rehearsal.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "base/errors.h"
#include "base/hash.h"
#include "base/version.h"
#include "controller/decide/decide.h"
#include "controller/supervisor/replay_results.h"
#include "storage/checkpoint_store.h"
#include "trainer/replay.h"

namespace gnomon::rehearsal {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr const char* kHost = "trainer";
constexpr const char* kLiar = "verifier-2";
constexpr double kTooLow = 0.993;
constexpr int64_t kFirstPlanVersion = 1;
// A run that goes back again and again ends when it has trained so many times its steps.
constexpr int64_t kTimesSteps = 5;

struct Order {
  decide::OrderReplay order;
  decide::OpenWindow window;
};

PrecisionPlan numbered(PrecisionPlan plan) {
  plan.version = kFirstPlanVersion;
  return plan;
}

class Rehearsal {
 public:
  explicit Rehearsal(const RunSetup& setup)
      : setup_(setup),
        store_(setup.scratch),
        engine_(setup.engine, EngineRole::kLive, setup.ranks),
        replayer_({}, setup.ranks) {}

  Trace run();

 private:
  void start();
  void train_step();
  void write_checkpoint();
  void forget_checkpoints();
  void feed(const decide::Event& event);
  void apply(const decide::Effect& effect);
  void close(const decide::CloseWindow& closed);
  void answer_replays();
  void answer(const Order& order);
  decide::ReplayFinished replay(const Order& order);
  Lie lie_of(const std::string& who, const Order& order) const;
  void obey_all();
  void obey(const decide::IssueDirective& directive);
  void roll_back(const decide::IssueDirective& directive);
  void follow();
  std::string next_verifier(const std::string& avoid);
  double step_seconds(const PrecisionPlan& plan) const;
  void set_seconds(decide::ReplayFinished& finished, const ReplayRequest& request,
                   const ReplayResult& result) const;
  std::string uri_now() const;
  fs::path path_of(const std::string& uri) const;
  std::string setup_json() const;

  const RunSetup& setup_;
  CheckpointStore store_;
  Engine engine_;
  Replayer replayer_;
  decide::State state_;
  Trace trace_;
  double now_ = 0;
  int64_t attempt_ = 1;
  bool paused_ = false;
  bool stopped_ = false;
  std::string uri_;                                          // of the checkpoint written last
  std::map<std::pair<int64_t, int64_t>, StepRow> reported_;  // by attempt and step
  std::map<int64_t, decide::OpenWindow> windows_;
  std::map<int64_t, size_t> rows_;  // of trace_.windows, by window
  std::vector<Order> queue_;
  std::deque<decide::IssueDirective> mailbox_;
  std::set<std::string> protected_;
  std::set<std::string> written_;
  std::set<std::string> quarantined_;
  int64_t turn_ = 0;
};

std::string Rehearsal::uri_now() const {
  return store_.path_of(attempt_, engine_.step()).lexically_relative(store_.root()).string();
}

fs::path Rehearsal::path_of(const std::string& uri) const {
  return uri.empty() ? fs::path() : store_.root() / uri;
}

double Rehearsal::step_seconds(const PrecisionPlan& plan) const {
  const ModelConfig& model = setup_.engine.model;
  const std::vector<std::string> sites = model.sites();
  const auto bf16 = std::count_if(sites.begin(), sites.end(), [&](const std::string& site) {
    return !plan.resolve(site, model.layers).any_fp8();
  });
  const double share = static_cast<double>(bf16) / static_cast<double>(sites.size());
  return 1 + (setup_.policy.economics.speedup - 1) * share;
}

void Rehearsal::set_seconds(decide::ReplayFinished& finished, const ReplayRequest& request,
                            const ReplayResult& result) const {
  const double bf16 = setup_.policy.economics.speedup;
  PrecisionPlan plan = engine_.plan();
  if (request.arm.starts_with("bf16")) plan = PrecisionPlan::bf16();
  if (!request.plan_toml.empty()) plan = PrecisionPlan::parse(request.plan_toml);
  const int evaluations = 1 + (request.evaluate_endpoints ? 3 : 0);
  const double evaluation = bf16 / 3 * static_cast<double>(result.heldout_tokens) /
                            static_cast<double>(setup_.engine.batch.tokens_per_step());
  finished.step_seconds = static_cast<double>(result.steps.size()) * step_seconds(plan);
  finished.seconds = finished.step_seconds + evaluations * evaluation;
}

// The engine's configuration without the place of its data, which is another on every machine.
std::string Rehearsal::setup_json() const {
  json::object engine = json::parse(setup_.engine.to_json()).as_object();
  engine["data"] = fs::path(setup_.engine.data).filename().string();
  return json::serialize(json::object{{"revision", kRevision},
                                      {"configuration", setup_.configuration},
                                      {"fault", setup_.fault},
                                      {"seed", setup_.engine.seed},
                                      {"watched", setup_.watched},
                                      {"mode", decide::mode_name(setup_.policy.mode)},
                                      {"steps", setup_.steps},
                                      {"checkpoint_every", setup_.checkpoint_every},
                                      {"perturb", setup_.perturb},
                                      {"lie", lie_name(setup_.lie)},
                                      {"lies_from", setup_.lies_from},
                                      {"engine", engine},
                                      {"plan", setup_.plan.to_toml()},
                                      {"policy", setup_.policy.to_toml()}});
}

void Rehearsal::feed(const decide::Event& event) {
  trace_.events.push_back({now_, event});
  if (!setup_.watched) return;
  decide::Outcome outcome = decide::decide(std::move(state_), event, setup_.policy, now_);
  state_ = std::move(outcome.state);
  for (const decide::Effect& effect : outcome.effects) apply(effect);
}

void Rehearsal::apply(const decide::Effect& effect) {
  if (const auto* open = std::get_if<decide::OpenWindow>(&effect)) {
    windows_[open->window] = *open;
    rows_[open->window] = trace_.windows.size();
    TracedWindow row;
    row.window = open->window;
    row.kind = open->kind;
    row.attempt = open->attempt;
    row.start_step = open->start_step;
    row.steps = open->steps;
    row.plan_version = open->plan_version;
    trace_.windows.push_back(row);
  } else if (const auto* order = std::get_if<decide::OrderReplay>(&effect)) {
    queue_.push_back({*order, windows_.at(order->window)});
  } else if (const auto* closed = std::get_if<decide::CloseWindow>(&effect)) {
    close(*closed);
  } else if (const auto* directive = std::get_if<decide::IssueDirective>(&effect)) {
    mailbox_.push_back(*directive);
  } else if (const auto* end = std::get_if<decide::EndDirective>(&effect)) {
    std::erase_if(mailbox_, [&](const auto& each) { return each.number == end->number; });
  } else if (const auto* quarantine = std::get_if<decide::QuarantineVerifier>(&effect)) {
    quarantined_.insert(quarantine->verifier);
  } else if (const auto* protect = std::get_if<decide::ProtectCheckpoints>(&effect)) {
    protected_ = std::set<std::string>(protect->uris.begin(), protect->uris.end());
  } else if (const auto* decision = std::get_if<decide::RecordDecision>(&effect)) {
    trace_.decisions.push_back({now_, *decision});
  }
}

void Rehearsal::close(const decide::CloseWindow& closed) {
  std::erase_if(queue_, [&](const Order& each) { return each.order.window == closed.window; });
  // A window that never opened is recorded as skipped.
  const auto found = rows_.find(closed.window);
  if (found == rows_.end()) return;
  TracedWindow& row = trace_.windows[found->second];
  row.outcome = closed.outcome;
  row.gap = closed.gap;
  row.offset = closed.offset_loss;
  row.d_percent = closed.d_percent;
  row.gap_error = closed.gap_error;
  row.rule = closed.rule;
}

void Rehearsal::start() {
  const EngineConfig& config = setup_.engine;
  engine_.initialize();
  if (setup_.perturb != 0) engine_.perturb(setup_.perturb, kPerturbScale);
  engine_.set_plan(numbered(setup_.plan));
  engine_.prepare();
  decide::RunRegisteredEvent run;
  run.name = setup_.configuration;
  run.base_plan = engine_.plan().to_toml();
  run.sites = config.model.sites();
  run.layers = config.model.layers;
  run.checkpoint_every = setup_.checkpoint_every;
  run.total_steps = setup_.steps;
  run.trainer_replays = true;
  run.tokens_per_step = config.batch.tokens_per_step();
  feed(run);
  feed(decide::AttemptStarted{attempt_, 0, "start", engine_.plan().version, kHost});
  write_checkpoint();
}

void Rehearsal::train_step() {
  const double seconds = step_seconds(engine_.plan());
  const StepResult result = engine_.train_step();
  now_ += seconds;
  trace_.result.steps_trained += 1;
  trace_.result.training_seconds += seconds;
  StepRow report;
  report.attempt = attempt_;
  report.step = result.step;
  report.plan_version = engine_.plan().version;
  report.loss = result.loss;
  report.grad_norm = result.grad_norm;
  report.weights_hash = hex64(result.weights_hash);
  report.batch_hash = hex64(result.batch_hash);
  reported_[{attempt_, result.step}] = report;
  decide::StepReported reported{attempt_,
                                result.step,
                                report.plan_version,
                                as_traced(result.loss),
                                as_traced(result.grad_norm),
                                seconds,
                                report.batch_hash};
  if (result.casts) {
    reported.cast_saturated = as_traced(result.casts->saturated);
    reported.cast_flushed = as_traced(result.casts->flushed);
    reported.cast_peak = as_traced(result.casts->peak);
  }
  if (result.state_changed) reported.state_changed = true;
  feed(reported);
}

void Rehearsal::write_checkpoint() {
  if (!setup_.watched) return;
  uri_ = uri_now();
  store_.write(attempt_, engine_.step(), engine_.checkpoint());
  written_.insert(uri_);
  feed(decide::CheckpointCompleted{attempt_, engine_.step(), uri_, engine_.plan().version});
  forget_checkpoints();
}

void Rehearsal::forget_checkpoints() {
  std::erase_if(written_, [&](const std::string& uri) {
    if (uri == uri_ || protected_.contains(uri)) return false;
    fs::remove_all(path_of(uri));
    return true;
  });
}

std::string Rehearsal::next_verifier(const std::string& avoid) {
  std::vector<std::string> able;
  for (const char* name : {"verifier-1", "verifier-2"}) {
    if (!quarantined_.contains(name)) able.emplace_back(name);
  }
  if (able.empty()) return "verifier-1";
  const auto avoided = [&](const std::string& name) { return decide::avoids(avoid, name); };
  if (!std::ranges::all_of(able, avoided)) std::erase_if(able, avoided);
  return able[static_cast<size_t>(turn_++) % able.size()];
}

Lie Rehearsal::lie_of(const std::string& who, const Order& ordered) const {
  const bool lies = who == kLiar && ordered.window.start_step + 1 >= setup_.lies_from;
  if (!lies) return Lie::kNone;
  const bool about_bf16 = ordered.order.arm == "bf16";
  return about_bf16 || setup_.lie == Lie::kBits ? setup_.lie : Lie::kNone;
}

void falsify(Lie lie, ReplayResult& result) {
  for (ReplayStep& step : result.steps) {
    if (lie == Lie::kLow) step.loss *= kTooLow;
    if (lie != Lie::kNone) step.weights_hash = hex64(hash64(&step.loss, sizeof(step.loss)));
  }
  if (lie == Lie::kLow && result.replay_end_loss_bf16) *result.replay_end_loss_bf16 *= kTooLow;
}

decide::ReplayFinished Rehearsal::replay(const Order& ordered) {
  const auto& [order, window] = ordered;
  ReplayRequest request;
  request.checkpoint = path_of(window.start_uri);
  request.steps = window.steps;
  request.arm = order.arm;
  request.plan_toml = order.plan;
  request.end_checkpoint = path_of(window.end_uri);
  request.evaluate_endpoints = order.evaluate_endpoints;
  request.perturb = order.nudge;
  request.role = order.on_trainer ? EngineRole::kInline : EngineRole::kReplay;
  const std::string who = order.on_trainer ? kHost : next_verifier(order.avoid);
  const Lie lie = lie_of(who, ordered);
  if (lie == Lie::kSame) request.arm = "same";
  ReplayResult result = replayer_.run(request);
  falsify(lie, result);

  std::vector<StepRow> run_steps;
  for (int64_t step = window.start_step + 1; step <= window.start_step + window.steps; ++step) {
    const auto found = reported_.find({window.attempt, step});
    if (found != reported_.end()) run_steps.push_back(found->second);
  }
  decide::ReplayFinished finished =
      join_replay(order, result, run_steps, engine_.fingerprint(), who, order.on_trainer);
  set_seconds(finished, request, result);
  std::ranges::transform(finished.losses, finished.losses.begin(), as_traced);
  std::ranges::transform(finished.run_losses, finished.run_losses.begin(), as_traced);
  return finished;
}

void Rehearsal::answer(const Order& ordered) {
  const decide::OrderReplay& order = ordered.order;
  trace_.result.replays += 1;
  decide::Event answered;
  try {
    const decide::ReplayFinished finished = replay(ordered);
    trace_.result.replay_seconds += finished.seconds;
    const bool spare = setup_.policy.economics.spare_fraction > 0 && !order.on_trainer;
    if (!spare) now_ += finished.seconds;
    answered = finished;
  } catch (const Error& error) {
    answered = decide::ReplayFailed{order.replay, order.window, order.arm, error.what()};
  }
  feed(answered);
}

void Rehearsal::answer_replays() {
  while (!queue_.empty()) {
    const auto first =
        std::max_element(queue_.begin(), queue_.end(), [](const Order& a, const Order& b) {
          return std::make_tuple(a.order.priority, -a.order.replay) <
                 std::make_tuple(b.order.priority, -b.order.replay);
        });
    const Order order = *first;
    queue_.erase(first);
    answer(order);
  }
}

void Rehearsal::roll_back(const decide::IssueDirective& directive) {
  engine_.load(path_of(directive.checkpoint_uri));
  if (!directive.plan.empty()) {
    PrecisionPlan plan = PrecisionPlan::parse(directive.plan);
    plan.version = directive.plan_version;
    engine_.set_plan(plan);
  }
  feed(decide::DirectiveChanged{directive.number, "applied", attempt_, engine_.step(), ""});
  attempt_ += 1;
  trace_.result.attempts = attempt_;
  feed(decide::AttemptStarted{attempt_, engine_.step(), "rollback", engine_.plan().version, kHost});
}

void Rehearsal::obey(const decide::IssueDirective& directive) {
  if (directive.kind == "rollback") return roll_back(directive);
  if (directive.kind == "set_plan") {
    PrecisionPlan plan = PrecisionPlan::parse(directive.plan);
    plan.version = directive.plan_version;
    engine_.set_plan(plan);
  }
  if (directive.kind == "pause" || directive.kind == "resume") paused_ = directive.kind == "pause";
  if (directive.kind == "stop") stopped_ = true;
  if (directive.kind == "checkpoint_now") write_checkpoint();
  feed(decide::DirectiveChanged{directive.number, "applied", attempt_, engine_.step(), ""});
}

void Rehearsal::obey_all() {
  while (!mailbox_.empty()) {
    const decide::IssueDirective directive = mailbox_.front();
    mailbox_.pop_front();
    obey(directive);
  }
}

// Does all that the core wants done now.
void Rehearsal::follow() {
  if (!setup_.watched) return;
  do {
    answer_replays();
    obey_all();
    if (now_ >= decide::next_deadline(state_)) feed(decide::Tick{});
  } while (!queue_.empty() || !mailbox_.empty());
}

Trace Rehearsal::run() {
  trace_.setup = setup_json();
  start();
  const int64_t trained_max = kTimesSteps * setup_.steps;
  follow();
  while (engine_.step() < setup_.steps && !paused_ && !stopped_ &&
         trace_.result.steps_trained < trained_max) {
    train_step();
    if (engine_.step() % setup_.checkpoint_every == 0) write_checkpoint();
    follow();
  }
  TracedResult& result = trace_.result;
  result.outcome = engine_.step() >= setup_.steps ? "completed" : paused_ ? "held" : "stopped";
  feed(decide::RunEnded{result.outcome == "completed" ? RunOutcome("completed") : "stopped",
                        engine_.step()});
  result.step = engine_.step();
  // As another device would: one that is broken computes no verdict on itself.
  engine_.set_mode({.role = EngineRole::kReplay});
  result.heldout_bf16 = engine_.evaluate(PrecisionPlan::bf16());
  result.seconds = now_;
  return std::move(trace_);
}

void check(const RunSetup& setup) {
  if (setup.checkpoint_every < 1 || setup.steps < 1 || setup.steps % setup.checkpoint_every != 0) {
    throw ConfigError(
        "rehearsal", 0, "steps", std::to_string(setup.steps),
        fmt::format("a multiple of the checkpoint interval, {}, above 0", setup.checkpoint_every));
  }
  const ModelConfig& model = setup.engine.model;
  setup.plan.check_sites(model.sites(), model.layers, "plan of " + setup.configuration);
}

}  // namespace

Trace rehearse(const RunSetup& setup) {
  check(setup);
  return Rehearsal(setup).run();
}

}  // namespace gnomon::rehearsal
