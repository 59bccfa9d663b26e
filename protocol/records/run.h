// Runs: how they register, begin an attempt and end.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/records/fingerprint.h"
#include "protocol/records/member.h"
#include "protocol/records/word.h"

namespace gnomon {

inline constexpr std::array<std::string_view, 3> kModes = {"observe", "advise", "enforce"};
using ModeName = Word<kModes>;
// What a trainer does whose controller is away; empty: not said.
inline constexpr std::array<std::string_view, 4> kOnLossWords = {"", "continue", "bf16", "pause"};
using OnLossWord = Word<kOnLossWords>;
inline constexpr std::array<std::string_view, 3> kAttemptCauses = {"start", "restart", "rollback"};
using AttemptCause = Word<kAttemptCauses>;
inline constexpr std::array<std::string_view, 3> kRunOutcomes = {"completed", "stopped", "failed"};
using RunOutcome = Word<kRunOutcomes>;
inline constexpr std::array<std::string_view, 5> kRunStates = {"live", "completed", "stopped",
                                                               "failed", "deleting"};
using RunStatus = Word<kRunStates>;

// How finely a trainer can change its precision, from the finest; and when it carries out a plan or
// goes back to a checkpoint.
inline constexpr std::array<std::string_view, 4> kPlanUnits = {"gemm", "module", "layer", "run"};
using PlanUnit = Word<kPlanUnits>;
inline constexpr std::array<std::string_view, 2> kPlanTimes = {"live", "restart"};
using PlanTime = Word<kPlanTimes>;
inline constexpr std::array<std::string_view, 3> kRollbackTimes = {"live", "restart", "none"};
using RollbackTime = Word<kRollbackTimes>;

// As our own trainer registers, and our own verifiers can replay.
inline constexpr const char* kOwnFramework = "gnomon";
inline constexpr const char* kOwnFormat = "gnomon";

// What a trainer can do. The controller orders nothing else of it.
struct Capabilities {
  PlanUnit plan = "gemm";
  PlanTime when = "live";
  RollbackTime rollback = "live";
  bool exact_replay = true;
  bool compiled = false;
  bool operator==(const Capabilities&) const = default;

  static constexpr Record kRecord = {
      "Capabilities", "What a trainer can do. The controller orders nothing else of it."};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using R = Capabilities;
    v("plan", &R::plan,
      Member{.help = "The smallest part whose precision it can change: one GEMM of a module, a "
                     "module, a layer, or only the whole run."});
    v("when", &R::when,
      Member{.help = "It takes a plan between two steps, or only when it is started again."});
    v("rollback", &R::rollback,
      Member{.help = "It goes back to a checkpoint by itself, when it is started again, or not."});
    v("exact_replay", &R::exact_replay,
      Member{.help = "A replay on an equal machine gives the same bits. Without it bits are never "
                     "compared, and the arm `same` is compared by its losses."});
    v("compiled", &R::compiled,
      Member{.help = "Its steps run compiled code (torch.compile). The arm `eager` then tells the "
                     "compiler from FP8."});
  }
};

// A fault switched on by configuration, reported to the controller so that the ledger knows the
// truth.
struct InjectedFault {
  std::string kind;
  std::string site;
  int64_t start_step = 0;
  int64_t end_step = 0;
  std::string description;

  static constexpr Record kRecord = {
      "InjectedFault",
      "A fault switched on by configuration, reported so that the ledger knows the truth."};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = InjectedFault;
    v("kind", &R::kind, Member{.required = true});
    v("site", &R::site, Member{});
    v("start_step", &R::start_step, Member{.required = true, .range = kStep});
    v("end_step", &R::end_step, Member{.range = kStep, .help = "Exclusive; 0 never ends."});
    v("description", &R::description, Member{.text = kSentence});
  }
};

struct FaultRow : InjectedFault {
  int64_t run = 0;

  static constexpr Row kRow = {"FaultRow", "faults"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    v("run", &FaultRow::run, Member{});
    InjectedFault::describe(v);
  }
};

// POST /v1/runs. Idempotent by (name, job_id).
struct RunRegistration {
  std::string name;
  std::string job_id;
  Fingerprint fingerprint;
  std::string base_plan;
  std::vector<std::string> sites;
  int layers = 0;
  int64_t parameters = 0;
  int64_t total_steps = 0;
  int64_t tokens_per_step = 0;
  int64_t checkpoint_every = 0;
  int64_t seed = 0;
  std::string checkpoint_root;
  std::vector<InjectedFault> faults;
  // What a trainer already knows when it registers again at a controller whose ledger is new:
  // directives and plans are numbered from there on.
  int64_t last_directive = 0;
  int64_t newest_plan_version = 0;
  bool trainer_replays = false;
  // It asks for those alone that only the trainer can do: where two sources contradict each other,
  // or one is alone.
  bool trainer_confirms = false;
  std::string framework = {};
  std::vector<std::string> tags = {};
  std::string checkpoint_format = {};
  Capabilities capabilities = {};

  static constexpr Record kRecord = {"RunRegistration", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = RunRegistration;
    v("name", &R::name, Member{.required = true, .text = kName, .help = "At most 200 bytes."});
    v("job_id", &R::job_id,
      Member{.required = true,
             .help = "At most 200 bytes; a slash would make NAME/JOB_ID ambiguous."});
    v("fingerprint", &R::fingerprint, Member{.required = true});
    v("base_plan", &R::base_plan,
      Member{.required = true,
             .text = kPlanText,
             .help = "TOML: the plan the run wants to be in (what \"return to FP8\" returns to)."});
    v("sites", &R::sites,
      Member{.required = true, .items_most = 100000, .help = "GEMM sites in model order."});
    v("layers", &R::layers, Member{.required = true, .range = {0, 1e6}});
    v("parameters", &R::parameters, Member{.range = kCount});
    v("total_steps", &R::total_steps, Member{.range = kStep});
    v("tokens_per_step", &R::tokens_per_step, Member{.range = kTokens});
    v("checkpoint_every", &R::checkpoint_every,
      Member{.required = true, .range = kStep, .help = "Steps; 0 none."});
    v("seed", &R::seed, Member{});
    v("checkpoint_root", &R::checkpoint_root, Member{.text = kPath});
    v("faults", &R::faults, Member{});
    v("last_directive", &R::last_directive,
      Member{.range = kStep,
             .help = "The newest directive that the trainer knows; a new ledger goes on numbering "
                     "behind it."});
    v("newest_plan_version", &R::newest_plan_version,
      Member{.range = kStep, .help = "The same of plans."});
    v("trainer_replays", &R::trainer_replays,
      Member{.help = "The trainer asks for leases itself (inline verification)."});
    v("trainer_confirms", &R::trainer_confirms,
      Member{.help = "The trainer asks for the leases that only it can do."});
    v("framework", &R::framework,
      Member{.help = "What trains, such as `pytorch`; our own trainer is `gnomon`. A verifier that "
                     "names frameworks gets no replay of another one; empty is not said."});
    v("tags", &R::tags, Member{.text = kName, .items_most = 50, .help = "Words for people."});
    v("checkpoint_format", &R::checkpoint_format,
      Member{.help = "Format of all its checkpoints, such as `torch`; our own is `gnomon`. A "
                     "verifier that names formats gets no other; empty: not given."});
    v("capabilities", &R::capabilities,
      Member{.help = "Absent: those of our own trainer, which can do all of it."});
  }
};

// A run in the ledger. The API shows it in parts.
struct RunRow {
  int64_t id = 0;
  std::string name;
  std::string job_id;
  std::string registration;
  std::string policy;
  RunStatus state;
  double registered_at = 0;
  std::optional<double> finished_at = {};
  std::optional<int64_t> finished_step = {};
  std::optional<double> final_loss = {};
  std::optional<double> train_seconds = {};

  // What people, metrics and alerts call it; its last slash parts the two.
  std::string label() const { return name + "/" + job_id; }

  static constexpr Row kRow = {"", "runs"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = RunRow;
    v("id", &R::id, Member{});
    v("name", &R::name, Member{});
    v("job_id", &R::job_id, Member{});
    v("registration", &R::registration, Member{.json = "RunRegistration"});
    v("policy", &R::policy, Member{.help = "TOML."});
    v("state", &R::state, Member{});
    v("registered_at", &R::registered_at, Member{.range = kTime});
    v("finished_at", &R::finished_at, Member{.range = kTime});
    v("finished_step", &R::finished_step, Member{.range = kStep});
    v("final_loss", &R::final_loss, Member{});
    v("train_seconds", &R::train_seconds, Member{});
  }
};

struct RunRegistered {
  std::string run;
  ModeName mode;
  // What the run's policy wants of a trainer whose controller is away, where its own file does not
  // say: continue, bf16, pause; and after how long. Empty: an older controller.
  OnLossWord on_loss = {};
  double grace_seconds = 60;

  static constexpr Record kRecord = {"RunRegistered", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = RunRegistered;
    v("run", &R::run, Member{.required = true, .help = "The id used in paths."});
    v("mode", &R::mode, Member{.required = true});
    v("on_loss", &R::on_loss,
      Member{.help = "What the run's policy wants of a trainer whose controller is away; empty "
                     "where it is not said."});
    v("grace_seconds", &R::grace_seconds, Member{});
  }
};

// POST /v1/runs/{run}/attempts. A rollback or a restart begins the next attempt. Idempotent by
// number.
struct AttemptStart {
  int64_t attempt = 1;
  int64_t base_step = 0;
  AttemptCause cause;
  int64_t plan_version = 0;
  double time = 0;
  std::optional<Fingerprint> fingerprint = {};
  std::string host = {};

  static constexpr Record kRecord = {"AttemptStart", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = AttemptStart;
    v("attempt", &R::attempt, Member{.required = true, .range = kStep, .help = "1, 2, …"});
    v("base_step", &R::base_step,
      Member{.required = true, .range = kStep, .help = "Its first step is the next one."});
    v("cause", &R::cause, Member{.required = true});
    v("plan_version", &R::plan_version, Member{.required = true, .range = kPlanVersion});
    v("fingerprint", &R::fingerprint,
      Member{.help = "This attempt's; absent: the registration's."});
    v("time", &R::time, Member{.range = kTime, .help = "Seconds since the epoch."});
    v("host", &R::host, Member{.help = "Where rank 0 runs; empty is not said."});
  }
};

struct AttemptRow {
  int64_t run = 0;
  int64_t attempt = 1;
  int64_t base_step = 0;
  AttemptCause cause;
  int64_t plan_version = 0;
  double started_at = 0;
  std::optional<std::string> fingerprint = {};
  std::string host = {};

  static constexpr Row kRow = {"AttemptRow", "attempts"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = AttemptRow;
    v("run", &R::run, Member{});
    v("attempt", &R::attempt, Member{.range = kStep});
    v("base_step", &R::base_step,
      Member{.range = kStep, .help = "Its first step is the next one."});
    v("cause", &R::cause, Member{});
    v("plan_version", &R::plan_version, Member{.range = kPlanVersion});
    v("started_at", &R::started_at, Member{.range = kTime});
    v("fingerprint", &R::fingerprint,
      Member{.json = "Fingerprint", .help = "Null: the registration's."});
    v("host", &R::host, Member{});
  }
};

struct PlanRow {
  int64_t run = 0;
  int64_t version = 0;
  std::string toml;
  double created_at = 0;

  static constexpr Row kRow = {"PlanRow", "plans"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = PlanRow;
    v("run", &R::run, Member{});
    v("version", &R::version, Member{.range = kPlanVersion});
    v("toml", &R::toml, Member{});
    v("created_at", &R::created_at, Member{.range = kTime});
  }
};

// POST /v1/runs/{run}/finished: the run ended by itself.
struct RunFinished {
  RunOutcome outcome;
  int64_t step = 0;
  double final_loss = 0;
  double train_seconds = 0;
  double time = 0;

  static constexpr Record kRecord = {"RunFinished", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = RunFinished;
    v("outcome", &R::outcome, Member{.required = true});
    v("step", &R::step, Member{.required = true, .range = kStep});
    v("final_loss", &R::final_loss,
      Member{.range = kComputed, .help = "Held-out loss in BF16 at the end."});
    v("train_seconds", &R::train_seconds,
      Member{.range = {0, 1e12}, .help = "Wall time in steps."});
    v("time", &R::time, Member{.range = kTime});
  }
};

// POST /v1/runs/{run}/end: the trainer is gone for good, and the run has failed.
struct EndRequest {
  std::string owner;
  std::string reason;

  static constexpr Record kRecord = {"EndRequest", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = EndRequest;
    v("owner", &R::owner,
      Member{.required = true, .text = kName, .help = "Who says so; at most 200 bytes."});
    v("reason", &R::reason,
      Member{.required = true,
             .text = {.least = 1, .most = 4096, .form = Text::Form::kFree},
             .help = "Why; at most 4096 bytes."});
  }
};

}  // namespace gnomon
