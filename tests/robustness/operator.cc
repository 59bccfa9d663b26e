#include "tests/robustness/operator.h"

#include <fmt/format.h>

#include <array>
#include <thread>

#include "protocol/json.h"
#include "protocol/precision_plan.h"
#include "tests/support/words.h"

namespace gnomon::robustness {

Operator::Operator(Scene& scene, uint64_t seed, int runs)
    : scene_(scene), draw_(seed, 3000), runs_(runs), endpoint_(scene, "operator") {}

void Operator::interfere() {
  constexpr std::array kKinds = {"pause", "resume", "checkpoint_now", "silence", "set_plan"};
  const int number = static_cast<int>(draw_.between(0, runs_ - 1));
  const int64_t id = scene_.record.of(number, [](RunRecord& run) { return run.id; });
  if (id == 0) return;
  OverrideRequest request;
  request.kind = test::any_word(kKinds[static_cast<size_t>(draw_.between(0, kKinds.size() - 1))]);
  request.owner = "operator";
  request.reason = fmt::format("because of {}", ++asked_);
  if (request.kind == "set_plan") request.plan = PrecisionPlan::bf16().to_toml();
  if (request.kind == "set_plan" || request.kind == "silence") request.expires_seconds = 3600;
  const auto note = [&](Fate fate) {
    scene_.record.of(number, [&](RunRecord& run) { run.overrides[request.reason] = fate; });
  };
  note(Fate::kSent);
  // Once: a repetition would be a second order.
  const std::optional<HttpResponse> answer =
      endpoint_.attempt("POST", fmt::format("/v1/runs/run-{}/overrides", id), to_json(request));
  if (!answer || answer->status == 409) return;  // 409: it makes no sense now
  if (answer->status != 200) {
    scene_.record.violation(fmt::format("an override was refused: {}", answer->body));
    return;
  }
  scene_.record.count("overrides");
  note(Fate::kAcknowledged);
}

void Operator::run() {
  int64_t next = draw_.between(20, 120);
  while (!scene_.over && !scene_.late()) {
    if (scene_.requests >= next) {
      interfere();
      next = scene_.requests + draw_.between(20, 120);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace gnomon::robustness
