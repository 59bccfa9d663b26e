// Replays: the leases under which verifiers do them, and their results.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/labels.h"
#include "protocol/records/fingerprint.h"
#include "protocol/records/member.h"
#include "protocol/records/word.h"

namespace gnomon {

inline constexpr std::array<std::string_view, 7> kArms = {
    "bf16", "same", "plan", "fakequant", "bf16-perturbed", "scores", "eager"};
using Arm = Word<kArms>;
inline constexpr std::array<std::string_view, 5> kPurposes = {"shadow", "triage", "attribution",
                                                              "probe", "instrument"};
using ReplayPurpose = Word<kPurposes>;

inline constexpr std::array<std::string_view, 5> kReplayStates = {"queued", "leased", "done",
                                                                  "failed", "cancelled"};
using ReplayState = Word<kReplayStates>;
inline constexpr std::array<std::string_view, 5> kLeaseStates = {"leased", "completed", "failed",
                                                                 "expired", "unsupported"};
using LeaseState = Word<kLeaseStates>;

// What the name of a trainer that asks for leases begins with, and no other verifier's.
inline constexpr const char* kTrainerPrefix = "trainer:";
inline bool is_trainer(const std::string& verifier) { return verifier.starts_with(kTrainerPrefix); }

// How the reason of a replay begins that was given up since no verifier can do it.
inline constexpr const char* kNobodyCan = "no verifier that speaks can do";

// What a verifier can do. An empty list is anything.
struct Abilities {
  std::vector<std::string> arms = {};
  std::vector<std::string> checkpoint_formats = {};
  std::vector<std::string> frameworks = {};
  bool operator==(const Abilities&) const = default;

  static bool has(const std::vector<std::string>& list, const std::string& word) {
    return list.empty() || std::ranges::find(list, word) != list.end();
  }
  bool can_replay(const std::string& arm) const { return has(arms, arm); }
  // A run that does not say what it is may be anything.
  bool can_read(const std::string& checkpoint_format, const std::string& framework) const {
    return (checkpoint_format.empty() || has(checkpoint_formats, checkpoint_format)) &&
           (framework.empty() || has(frameworks, framework));
  }
};

// POST /v1/leases?wait=SECONDS. 200 with a Lease, or 204 when there is nothing to do.
struct LeaseRequest {
  std::string verifier;
  Fingerprint fingerprint;
  // A trainer that replays between two steps asks for its own run's work only, and takes what only
  // the trainer can do.
  std::string run = {};
  bool on_trainer = false;
  // What its operator calls it, for a policy's [verifier] requires: "pool", "host", ... The
  // controller adds "backend" and "device" of the fingerprint. Bounds: protocol/labels.h.
  Labels labels = {};
  Abilities can = {};

  static constexpr Record kRecord = {"LeaseRequest", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = LeaseRequest;
    v("verifier", &R::verifier,
      Member{.required = true,
             .text = kName,
             .help = "Unique for each process: `host:pid`; a trainer's, and nobody else's, begins "
                     "with `trainer:`."});
    v("fingerprint", &R::fingerprint, Member{.required = true});
    v("run", &R::run, Member{.help = "A trainer asks for its own run's work."});
    v("on_trainer", &R::on_trainer, Member{.help = "A trainer asks."});
    v("labels", &R::labels, Member{});
    v(
        "arms", [](auto& request) -> auto& { return request.can.arms; },
        Member{.text = kName, .items_most = 100, .help = "Those it can do; absent is all."});
    v(
        "checkpoint_formats", [](auto& request) -> auto& { return request.can.checkpoint_formats; },
        Member{
            .text = kName,
            .items_most = 100,
            .help = "Those it can read, as runs name theirs when they register; absent is any."});
    v(
        "frameworks", [](auto& request) -> auto& { return request.can.frameworks; },
        Member{.text = kName,
               .items_most = 100,
               .help = "Whose runs it can replay, as runs name theirs; absent is any."});
  }
};

// What to replay: a window in one arm.
struct ReplayTask {
  std::string run;
  int64_t replay = 0;
  int64_t window = 0;
  int64_t attempt = 1;
  Arm arm;
  std::string plan;
  ReplayPurpose purpose;
  std::string checkpoint_uri;
  int64_t start_step = 0;
  int64_t steps = 0;
  std::string end_checkpoint_uri;
  bool evaluate_endpoints = false;
  // Other than 0: the arm starts from weights that this seed moves a little, so that repeated
  // replays of one arm spread as chance would spread them. The scale is relative; 0 = the default.
  int64_t perturb = 0;
  double perturb_scale = 0;

  static constexpr Record kRecord = {"ReplayTask", "A window to replay in one arm."};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = ReplayTask;
    v("run", &R::run, Member{.required = true});
    v("replay", &R::replay, Member{.required = true, .help = "Id."});
    v("window", &R::window, Member{.required = true, .help = "Id."});
    v("attempt", &R::attempt, Member{.required = true, .range = kStep});
    v("arm", &R::arm,
      Member{.required = true,
             .help = "`bf16`: every GEMM in BF16. `same`: the plan that the trainer had, which may "
                     "change within the window. `plan`: the plan given here. `fakequant`: values "
                     "rounded to FP8 as the plan says, multiplied in BF16. `bf16-perturbed`: BF16 "
                     "with another order of sums. `scores`: no steps, but what FP8 costs at each "
                     "site of the checkpoint. `eager`: as `same`, without the compiler."});
    v("plan", &R::plan,
      Member{.text = kPlanText,
             .help = "TOML for arm `plan`; for `fakequant`, `eager` and `scores` if not the "
                     "checkpoint's."});
    v("purpose", &R::purpose, Member{});
    v("checkpoint_uri", &R::checkpoint_uri, Member{.required = true, .text = kPath});
    v("start_step", &R::start_step,
      Member{.required = true, .range = kStep, .help = "The checkpoint's."});
    v("steps", &R::steps, Member{.required = true, .help = "K."});
    v("end_checkpoint_uri", &R::end_checkpoint_uri,
      Member{.text = kPath,
             .help = "The run's own checkpoint behind the last step; may be empty."});
    v("evaluate_endpoints", &R::evaluate_endpoints,
      Member{.help = "Also evaluate the checkpoint and the run's own end on held-out text "
                     "(start_loss_bf16, start_loss_plan, run_end_loss_bf16). The replay's own end "
                     "(replay_end_loss_bf16) is always wanted, of every arm but `scores`: without "
                     "it the window cannot be judged."});
    v("perturb", &R::perturb, Member{.help = "The seed of a nudge of the weights; 0 none."});
    v("perturb_scale", &R::perturb_scale, Member{.help = "Relative; 0 the default."});
  }
};

struct Lease {
  int64_t lease = 0;
  int64_t token = 0;
  double ttl_seconds = 0;
  ReplayTask task;

  static constexpr Record kRecord = {"Lease", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = Lease;
    v("lease", &R::lease, Member{.required = true});
    v("token", &R::token,
      Member{.required = true, .help = "Fencing token; grows with every lease of a replay."});
    v("ttl_seconds", &R::ttl_seconds,
      Member{.required = true, .help = "It is lost when its verifier is silent for so long."});
    v("task", &R::task, Member{.required = true});
  }
};

// POST /v1/leases/{lease}/heartbeat; 409 when the token is stale: stop working.
struct LeaseHeartbeat {
  int64_t token = 0;
  int64_t steps_done = 0;

  static constexpr Record kRecord = {"LeaseHeartbeat", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = LeaseHeartbeat;
    v("token", &R::token, Member{.required = true});
    v("steps_done", &R::steps_done, Member{.range = kStep});
  }
};

// One replayed step.
struct ReplayStep {
  int64_t step = 0;
  double loss = 0;
  std::optional<double> grad_norm = {};
  std::string weights_hash = {};
  std::string batch_hash = {};

  static constexpr Record kRecord = {"ReplayStep", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = ReplayStep;
    v("step", &R::step, Member{.required = true, .range = kStep});
    v("loss", &R::loss, Member{.required = true, .range = kComputed});
    v("grad_norm", &R::grad_norm,
      Member{.range = kMagnitude, .help = "Absent where it is not computed."});
    v("weights_hash", &R::weights_hash, Member{.text = kHash});
    v("batch_hash", &R::batch_hash, Member{.text = kHashOrNothing});
  }
};

// What an analysis of a checkpoint says of one GEMM site; trainer/engine/site_scores.h has the
// formulas. Nats.
struct SiteScoreRow {
  std::string site;
  double phi = 0;
  double psi = 0;
  double sqnr_db = 0;

  static constexpr Record kRecord = {
      "SiteScoreRow", "What an analysis of a checkpoint says of one GEMM site, in nats."};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = SiteScoreRow;
    v("site", &R::site, Member{.required = true});
    v("phi", &R::phi,
      Member{.required = true,
             .range = kComputed,
             .help = "What its FP8 costs the loss of a forward pass."});
    v("psi", &R::psi,
      Member{.required = true,
             .range = kComputed,
             .help = "What its FP8 gradient costs the next update on held-out text."});
    v("sqnr_db", &R::sqnr_db,
      Member{.required = true, .help = "Signal to quantization noise of its output in FP8."});
  }
};

// What a replay has measured. Held-out losses are means in nats per token; absent is not measured.
struct ReplayNumbers {
  std::optional<double> start_loss_bf16 = {};
  std::optional<double> start_loss_plan = {};
  std::optional<double> run_end_loss_bf16 = {};
  std::optional<double> replay_end_loss_bf16 = {};
  int64_t heldout_tokens = 0;
  double replay_seconds = 0;
  double eval_seconds = 0;
  std::optional<double> start_loss_fakequant = {};
  std::optional<double> gap_error = {};

  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = ReplayNumbers;
    v("start_loss_bf16", &R::start_loss_bf16,
      Member{.range = kComputed, .help = "L16 at the checkpoint."});
    v("start_loss_plan", &R::start_loss_plan,
      Member{.range = kComputed,
             .help = "L8 at the checkpoint: the same weights under the run's plan."});
    v("run_end_loss_bf16", &R::run_end_loss_bf16,
      Member{.range = kComputed, .help = "L16(w8): the run's own end checkpoint, in BF16."});
    v("replay_end_loss_bf16", &R::replay_end_loss_bf16,
      Member{.range = kComputed,
             .help = "Loss of the weights at the replay's end, evaluated in BF16. Required from "
                     "every arm but `scores`, unless the replay turned non-finite."});
    v("heldout_tokens", &R::heldout_tokens, Member{.range = kCount});
    v("replay_seconds", &R::replay_seconds,
      Member{.range = kSeconds, .help = "Compute spent in steps."});
    v("eval_seconds", &R::eval_seconds,
      Member{.range = kSeconds, .help = "Compute spent in evaluations and loading."});
    v("start_loss_fakequant", &R::start_loss_fakequant,
      Member{.range = kComputed, .help = "As start_loss_plan, but without the FP8 kernel."});
    v("gap_error", &R::gap_error,
      Member{.range = kMagnitude,
             .help = "Standard error of run_end_loss_bf16 − replay_end_loss_bf16, paired over "
                     "held-out sequences."});
  }
};

// POST /v1/leases/{lease}/complete
struct ReplayResult : ReplayNumbers {
  int64_t token = 0;
  Fingerprint fingerprint = {};
  std::vector<ReplayStep> steps = {};
  double time = 0;
  std::vector<SiteScoreRow> scores = {};

  static constexpr Record kRecord = {
      "ReplayResult", "Held-out losses are means in nats per token; absent is not measured."};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = ReplayResult;
    v("token", &R::token, Member{.required = true});
    v("fingerprint", &R::fingerprint, Member{.required = true});
    v("steps", &R::steps,
      Member{.required = true,
             .help = "The window's steps in order, or the first of them when the replay turned "
                     "non-finite."});
    ReplayNumbers::describe(v);
    v("time", &R::time, Member{.range = kTime});
    v("scores", &R::scores, Member{.help = "The answer of arm `scores`."});
  }
};

// A replay that the controller wants.
struct ReplayOrder {
  int64_t replay = 0;
  int64_t window = 0;
  Arm arm = {};
  std::string plan = {};
  ReplayPurpose purpose = {};
  bool evaluate_endpoints = false;
  int64_t priority = 0;
  int64_t nudge = 0;
  std::string avoid = {};
  bool on_trainer = false;

  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = ReplayOrder;
    v("replay", &R::replay, Member{.required = true, .help = "1, 2, …"});
    v("window", &R::window, Member{.required = true});
    v("arm", &R::arm, Member{.required = true});
    v("plan", &R::plan,
      Member{.text = kAnyText,
             .help = "TOML for arm `plan`; for `fakequant`, `eager` and `scores` if not the "
                     "checkpoint's."});
    v("purpose", &R::purpose, Member{.required = true});
    v("evaluate_endpoints", &R::evaluate_endpoints,
      Member{.help = "Also evaluate start and end on held-out text."});
    v("priority", &R::priority, Member{.help = "Higher first."});
    v("nudge", &R::nudge,
      Member{.help = "Seed of a nudge of the weights by rounding noise; 0 none."});
    v("avoid", &R::avoid,
      Member{.text = kAnyText,
             .help = "Verifiers that are not to do it as long as there is another, a line each."});
    v("on_trainer", &R::on_trainer, Member{.help = "Only the trainer itself can do it."});
  }
};

struct ReplayRow : ReplayOrder {
  int64_t run = 0;
  ReplayState state = "queued";
  int64_t token = 0;
  std::optional<std::string> fail_reason = {};
  double ordered_at = 0;
  std::optional<double> finished_at = {};

  static constexpr Row kRow = {"", "replays"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = ReplayRow;
    v("run", &R::run, Member{});
    ReplayOrder::describe(v);
    v("state", &R::state, Member{});
    v("token", &R::token, Member{.help = "Token of its newest lease; grows by one with each."});
    v("fail_reason", &R::fail_reason, Member{});
    v("ordered_at", &R::ordered_at, Member{.range = kTime});
    v("finished_at", &R::finished_at, Member{.range = kTime});
  }
};

struct ResultRow : ReplayNumbers {
  int64_t run = 0;
  int64_t replay = 0;
  int64_t token = 0;
  std::string verifier = {};
  std::string fingerprint = {};
  double finished_at = 0;

  static constexpr Row kRow = {"", "results"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using R = ResultRow;
    v("run", &R::run, Member{});
    v("replay", &R::replay, Member{});
    v("token", &R::token, Member{});
    v("verifier", &R::verifier, Member{});
    v("fingerprint", &R::fingerprint, Member{.json = "Fingerprint"});
    ReplayNumbers::describe(v);
    v("finished_at", &R::finished_at, Member{.range = rules::kTime});
  }
};

// A replay with its result, whose columns are NULL as long as there is none.
struct ShownReplay : ReplayRow {
  std::optional<std::string> verifier = {};
  std::optional<std::string> fingerprint = {};
  ReplayNumbers numbers = {};

  static constexpr Row kRow = {"ReplayRow", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using R = ShownReplay;
    ReplayRow::describe(v);
    v("verifier", &R::verifier, Member{});
    v("fingerprint", &R::fingerprint, Member{.json = "Fingerprint"});
    ReplayNumbers::describe([&](const char* name, auto member, Member rules) {
      rules.null = true;
      v(
          name, [member](auto& row) -> auto& { return row.numbers.*member; }, rules);
    });
  }
};

struct ReplayStepRow : ReplayStep {
  int64_t run = 0;
  int64_t replay = 0;

  static constexpr Row kRow = {"", "replay_steps"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    v("run", &ReplayStepRow::run, Member{});
    v("replay", &ReplayStepRow::replay, Member{});
    ReplayStep::describe(v);
  }
};

struct ScoreRow : SiteScoreRow {
  int64_t run = 0;
  int64_t replay = 0;

  static constexpr Row kRow = {"", "scores"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    v("run", &ScoreRow::run, Member{});
    v("replay", &ScoreRow::replay, Member{});
    SiteScoreRow::describe(v);
  }
};

struct LeaseRow {
  int64_t id = 0;
  int64_t run = 0;
  int64_t replay = 0;
  int64_t token = 0;
  std::string verifier;
  LeaseState state = "leased";
  double granted_at = 0;
  double heartbeat_at = 0;
  int64_t steps_done = 0;
  std::optional<std::string> reason = {};

  static constexpr Row kRow = {"", "leases"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = LeaseRow;
    v("id", &R::id, Member{});
    v("run", &R::run, Member{});
    v("replay", &R::replay, Member{});
    v("token", &R::token, Member{});
    v("verifier", &R::verifier, Member{});
    v("state", &R::state, Member{});
    v("granted_at", &R::granted_at, Member{.range = kTime});
    v("heartbeat_at", &R::heartbeat_at, Member{.range = kTime});
    v("steps_done", &R::steps_done, Member{.range = kStep});
    v("reason", &R::reason, Member{});
  }
};

// POST /v1/leases/{lease}/fail
struct LeaseFailure {
  int64_t token = 0;
  std::string reason;
  bool retryable = true;
  bool unsupported = false;

  static constexpr Record kRecord = {"LeaseFailure", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = LeaseFailure;
    v("token", &R::token, Member{.required = true});
    v("reason", &R::reason, Member{.required = true, .text = kSentence});
    v("retryable", &R::retryable,
      Member{.help = "Another try, by whomever, may succeed. Default true."});
    v("unsupported", &R::unsupported,
      Member{.help = "This verifier cannot do such a replay: it does not know the arm, or cannot "
                     "read the checkpoint's format. The replay goes to others, costs none of its "
                     "tries, and does not come back to this verifier."});
  }
};

}  // namespace gnomon
