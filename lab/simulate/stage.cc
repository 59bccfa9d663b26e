#include "lab/simulate/stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/errors.h"

namespace gnomon::simulate {

std::vector<std::string> site_names(int layers) {
  std::vector<std::string> sites;
  for (int layer = 0; layer < layers; ++layer) {
    for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                             "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      sites.push_back(fmt::format("model.layers.{}.{}", layer, name));
    }
  }
  sites.push_back("lm_head");
  return sites;
}

Stage::Stage(decide::Policy chosen) : policy(std::move(chosen)) {}

void Stage::feed(const decide::Event& event) {
  const decide::Consequences follows = decide::decide_in_place(state, event, policy, now);
  for (const decide::Effect& effect : follows.effects) apply(effect);
}

void Stage::apply(const decide::Effect& effect) {
  if (const auto* open = std::get_if<decide::OpenWindow>(&effect)) {
    windows_.push_back(*open);
  } else if (const auto* order = std::get_if<decide::OrderReplay>(&effect)) {
    const auto window = std::ranges::find(windows_, order->window, &decide::OpenWindow::window);
    GNOMON_ASSERT(window != windows_.end());
    queue_.push_back({*order, *window});
  } else if (const auto* close = std::get_if<decide::CloseWindow>(&effect)) {
    const int64_t id = close->window;
    std::erase_if(queue_, [id](const Queued& queued) { return queued.order.window == id; });
    std::erase_if(windows_, [id](const decide::OpenWindow& window) { return window.window == id; });
  } else if (const auto* directive = std::get_if<decide::IssueDirective>(&effect)) {
    mailbox_.push_back(*directive);
  } else if (const auto* end = std::get_if<decide::EndDirective>(&effect)) {
    std::erase_if(mailbox_, [&](const auto& waiting) { return waiting.number == end->number; });
  } else if (const auto* quarantine = std::get_if<decide::QuarantineVerifier>(&effect)) {
    quarantined_.push_back(quarantine->verifier);
  } else if (const auto* protect = std::get_if<decide::ProtectCheckpoints>(&effect)) {
    protected_ = protect->uris;
    std::ranges::sort(protected_);
  }
}

void Stage::save() {
  const std::string uri = fmt::format("{}attempt{}/step{}", uri_prefix_, attempt, step);
  std::erase_if(saved_, [&](const Saved& known) { return known.uri == uri; });
  saved_.push_back({uri, step, attempt, damage, plan_version_, plan_});
  feed(decide::CheckpointCompleted{attempt, step, uri, plan_version_});
  std::erase_if(saved_, [&](const Saved& known) {
    return known.uri != uri && !std::ranges::binary_search(protected_, known.uri);
  });
}

const Stage::Saved* Stage::find_saved(const std::string& uri) const {
  for (const Saved& known : saved_) {
    if (known.uri == uri) return &known;
  }
  return nullptr;
}

const Stage::Saved* Stage::find_saved(int64_t at) const {
  const Saved* found = nullptr;
  for (const Saved& known : saved_) {
    if (known.step == at) found = &known;
  }
  return found;
}

const Stage::Saved& Stage::newest_saved() const {
  const Saved* newest = nullptr;
  for (const Saved& known : saved_) {
    const bool ours = known.attempt == attempt || known.step <= base_step_;
    if (!ours || known.step > step) continue;
    if (newest == nullptr || known.step >= newest->step) newest = &known;
  }
  GNOMON_ASSERT(newest != nullptr);
  return *newest;
}

void Stage::begin_attempt(const Saved& base, const std::string& cause) {
  step = base.step;
  base_step_ = base.step;
  damage = base.damage;
  attempt += 1;
  feed(decide::AttemptStarted{attempt, step, cause, plan_version_, host_});
}

void Stage::carry_out(const decide::IssueDirective& directive) {
  if (directive.kind == "pause" || directive.kind == "resume") paused = directive.kind == "pause";
  if (directive.kind == "stop") stopped = true;
  const bool back = directive.kind == "rollback";
  std::optional<Saved> base;
  if (back) {
    const Saved* found = find_saved(directive.checkpoint_uri);
    if (found == nullptr) return complain(directive.checkpoint_uri + " was deleted");
    if (found->step != directive.to_step) {
      complain(fmt::format("{} is not of step {}", found->uri, directive.to_step));
    }
    base = *found;
    steps_lost += step - directive.to_step;
    step = directive.to_step;
    damage = base->damage;
  }
  if (back || directive.kind == "set_plan") {
    plan_ = directive.plan;
    plan_version_ = directive.plan_version;
  }
  feed(decide::DirectiveChanged{directive.number, "applied", attempt, step, ""});
  if (back) begin_attempt(*base, "rollback");
}

void Stage::obey() {
  while (!mailbox_.empty()) {
    const decide::IssueDirective directive = std::move(mailbox_.front());
    mailbox_.pop_front();
    answer_directive(directive);
  }
}

void Stage::wait_until(double time) {
  while (decide::next_deadline(state) <= time) {
    now = std::max(now, decide::next_deadline(state));
    feed(decide::Tick{});
  }
  now = std::max(now, time);
}

std::optional<Stage::Queued> Stage::pop_next_replay() {
  if (queue_.empty()) return std::nullopt;
  const auto first = std::ranges::max_element(queue_, {}, [](const Queued& queued) {
    return std::pair(queued.order.priority, -queued.order.replay);
  });
  Queued queued = std::move(*first);
  queue_.erase(first);
  return queued;
}

void Stage::remember_loss(double loss) {
  const auto index = static_cast<size_t>(attempt - 1);
  while (reported_.size() <= index) reported_.push_back({step - 1, {}});
  reported_[index].losses.push_back(loss);
}

const double* Stage::find_reported(int64_t of_attempt, int64_t at) const {
  const auto index = static_cast<size_t>(of_attempt - 1);
  if (of_attempt < 1 || index >= reported_.size()) return nullptr;
  const Reported& known = reported_[index];
  const int64_t place = at - known.base - 1;
  if (place < 0 || place >= static_cast<int64_t>(known.losses.size())) return nullptr;
  return &known.losses[static_cast<size_t>(place)];
}

double Stage::reported_loss(int64_t of_attempt, int64_t at) const {
  const double* found = find_reported(of_attempt, at);
  return found != nullptr ? *found : NAN;
}

bool Stage::was_reported(int64_t of_attempt, int64_t at) const {
  return find_reported(of_attempt, at) != nullptr;
}

}  // namespace gnomon::simulate
