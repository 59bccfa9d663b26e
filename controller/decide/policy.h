// The fallback policy: one TOML file that says when FP8 is blamed and what is done about it. Each
// key is described once, beside its member; docs/policy.md has tables made of that.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "controller/decide/rungs.h"
#include "protocol/labels.h"
#include "protocol/precision_plan.h"
#include "protocol/records/run.h"
#include "protocol/settings.h"

namespace gnomon::decide {

enum class Mode { kObserve, kAdvise, kEnforce };  // in the order of kModes

inline constexpr std::array<std::string_view, 6> kDetectors = {"eprocess", "fixed", "shewhart",
                                                               "cusum",    "ewma",  "glr"};
inline constexpr std::array<std::string_view, 2> kNoises = {"symmetric", "any"};
inline constexpr std::array<std::string_view, 3> kWaysBack = {"last_verified", "evidence", "here"};
inline constexpr std::array<std::string_view, 3> kOnVerifierLoss = {"continue", "bf16", "hold"};
inline constexpr std::array<std::string_view, 2> kOnGradientNorm = {"window", "bf16"};

struct Policy {
  static constexpr double kStepsMax = 1e9;

  Mode mode = Mode::kEnforce;

  struct Window {
    int64_t every = 0;
    int64_t steps = 50;
    int open_max = 4;
    int64_t long_steps = 0;
    int64_t long_every = 500;

    // Versions before 0.3 wrote them beside an exact `every`.
    static constexpr std::array<std::string_view, 2> kRetired = {"cadence", "every_max"};

    template <class Visitor>
    static void describe(Visitor&& v) {
      using S = Window;
      v("every", &S::every,
        Setting{.range = {0, kStepsMax},
                .unit = "steps",
                .help = "Steps from the start of one window to the next, exactly. 0: at random "
                        "places, as often as the [budget](economics.md#the-budget) pays."});
      v("steps", &S::steps,
        Setting{.range = {1, kStepsMax},
                .unit = "steps",
                .otherwise = "`every`, if that is given and less",
                .accepted = "1 … `every`, if that is given",
                .help = "Length of a window."});
      v("open_max", &S::open_max,
        Setting{.range = {1, 1000},
                .unit = "windows",
                .help = "May wait for verifiers. Further ones are skipped."});
      v("long_steps", &S::long_steps,
        Setting{.range = {0, kStepsMax},
                .unit = "steps",
                .accepted = "0, or more than `steps`, up to 10⁹",
                .help = "Length of a long fork, which finds slow bias. 0: by the budget "
                        "(`verification.long_share`), else none."});
      v("long_every", &S::long_every,
        Setting{.range = {1, kStepsMax},
                .unit = "steps",
                .otherwise = "`long_steps`, if that is more",
                .accepted = "`long_steps` … 10⁹, at least 1",
                .help = "From the start of one long fork to the next."});
    }
    void settle(const TomlTable& table);
  } window;

  struct Verification {
    double budget_percent = 5;
    double long_share = 0.25;
    std::string on_gradient_norm = "window";

    template <class Visitor>
    static void describe(Visitor&& v) {
      v("budget_percent", &Verification::budget_percent,
        Setting{.range = {0.1, 100},
                .unit = "%",
                .help = "The most that all replays may cost, in percent of the compute of "
                        "training. Incidents may exceed it; later windows pay that back."});
      v("long_share", &Verification::long_share,
        Setting{.range = {0, 0.9},
                .help = "Long forks' share of the budget if `window.every` is 0. Each is ten "
                        "windows long. 0: none."});
      v("on_gradient_norm", &Verification::on_gradient_norm,
        Setting{.words = kOnGradientNorm,
                .help = "What follows when the gradient norm leaves its forecast: a window, or the "
                        "run goes to BF16 at once, until probes bring it back."});
    }
  } verification;

  struct Detector {
    std::string kind = "eprocess";
    double windows_between_false_alarms = 10000;
    double tolerance_percent = 0.25;
    double ceiling_percent = 1;
    double jump_deviations = 5;
    double fixed_percent = 0.25;
    double prior_scale_percent = 0.05;
    int burn_in_windows = 15;
    std::string noise = "symmetric";
    bool burst = true;
    double accept_percent = 0.5;
    int64_t burn_in_steps = 0;
    double spike_sigma = 7.0;
    int spike_history = 128;
    double spike_ratio = 10.0;

    template <class Visitor>
    static void describe(Visitor&& v) {
      using S = Detector;
      v("kind", &S::kind,
        Setting{.words = kDetectors, .help = "The test ([detector.md](detector.md))."});
      v("windows_between_false_alarms", &S::windows_between_false_alarms,
        Setting{.range = {20, 1e9},
                .help = "Mean number of healthy windows between false alarms, at least."});
      v("tolerance_percent", &S::tolerance_percent,
        Setting{.range = {0, 100},
                .help = "A mean gap D up to this is no gap. After `burn_in_windows` the run's own "
                        "level applies if lower."});
      v("ceiling_percent", &S::ceiling_percent,
        Setting{.range = {1e-6, 1e6},
                .otherwise = "2·`tolerance_percent`, if that is more",
                .accepted = "above `tolerance_percent`, up to 10⁶",
                .help = "One window above it is an alarm. Triage then rules out chance."});
      v("jump_deviations", &S::jump_deviations,
        Setting{.range = {0, 1000},
                .help = "One window is also an alarm if its gap is over the tolerance and this "
                        "many deviations above the null. 0: off. Needs `eprocess` and "
                        "`triage.pairs`; not for long forks."});
      v("fixed_percent", &S::fixed_percent,
        Setting{.range = {1e-6, 1e6}, .help = "Threshold of `kind = \"fixed\"`."});
      v("prior_scale_percent", &S::prior_scale_percent,
        Setting{.range = {1e-6, 100},
                .help = "Assumed deviation of D in healthy windows before it is learned."});
      v("burn_in_windows", &S::burn_in_windows,
        Setting{.range = {0, 10000},
                .help = "Windows over which the null's mean is learned. The mean is at most the "
                        "tolerance."});
      v("noise", &S::noise,
        Setting{.words = kNoises,
                .help = "Assumed noise of D: symmetric about its mean, or any with a finite "
                        "deviation (slower)."});
      v("burst", &S::burst,
        Setting{.help = "After a suspicion up to 16 windows follow back to back."});
      v("accept_percent", &S::accept_percent,
        Setting{.range = {0, 100},
                .help = "A gap that will stay under it is accepted, because FP8 saves more "
                        "([economics.md](economics.md)). 0: never."});
      v("burn_in_steps", &S::burn_in_steps,
        Setting{.range = {0, kStepsMax},
                .help = "Windows that begin before this step teach the detector nothing; only "
                        "`ceiling_percent` applies. Set it to the end of the learning rate's "
                        "warm-up or later. Spikes are judged from the start."});
      v("spike_sigma", &S::spike_sigma,
        Setting{.range = {1, 1000},
                .unit = "deviations",
                .help = "A loss this far above the trend of the steps before is a spike."});
      v("spike_history", &S::spike_history,
        Setting{.range = {32, 10000},
                .unit = "steps",
                .help = "Steps for the trend. No spikes before 32 of them."});
      v("spike_ratio", &S::spike_ratio,
        Setting{
            .range = {1.01, 1e6},
            .help = "A loss above this many times the largest of the first 100 is also a spike."});
    }
    void settle(const TomlTable& table);
  } detector;

  // Checks whether the instrument itself is sound: BF16 against BF16 with another order of sums.
  struct Instrument {
    int every = 20;
    double ratio = 5.0;

    template <class Visitor>
    static void describe(Visitor&& v) {
      using S = Instrument;
      v("every", &S::every,
        Setting{
            .range = {0, 1e6},
            .unit = "windows",
            .help =
                "From one check to the next: a BF16 replay with another order of sums. 0: never."});
      v("ratio", &S::ratio,
        Setting{.range = {1.5, 1e6},
                .help = "If the two differ by over this many times the usual, the BF16 replay is "
                        "repeated. Other bits then mean a broken instrument."});
    }
  } instrument;

  struct Triage {
    int pairs = 3;
    int transients_max = 1;
    int64_t transient_steps = 10000;

    template <class Visitor>
    static void describe(Visitor&& v) {
      using S = Triage;
      v("pairs", &S::pairs,
        Setting{
            .range = {0, 8},
            .help = "Nudged replays of each arm, to rule out chance. 0: chance is not tested."});
      v("transients_max", &S::transients_max,
        Setting{.range = {0, 1000},
                .help = "Transient faults on one host. The next one is a persistent fault."});
      v("transient_steps", &S::transient_steps,
        Setting{.range = {1, 1e12}, .help = "A transient fault is remembered for this long."});
    }
  } triage;

  struct Attribution {
    bool scores = true;
    double recovered_share = 0.25;
    int replays_max = 40;
    int parallel = 2;
    int sites_max = 8;

    template <class Visitor>
    static void describe(Visitor&& v) {
      using S = Attribution;
      v("scores", &S::scores,
        Setting{.help = "Rank the sites by an [analysis](attribution.md) first. false: the model's "
                        "order."});
      v("recovered_share", &S::recovered_share,
        Setting{.range = {0, 0.99},
                .help = "A rescue has removed a spike if at most this share remains, or the step "
                        "is under the threshold."});
      v("replays_max", &S::replays_max,
        Setting{.range = {1, 10000}, .help = "Rescue replays of one attribution."});
      v("parallel", &S::parallel,
        Setting{.range = {1, 64},
                .unit = "replays",
                .help = "Rescues at a time. Best: the number of verifiers."});
      v("sites_max", &S::sites_max, Setting{.range = {1, 10000}, .help = "Pinned sites in all."});
    }
  } attribution;

  struct Ladder {
    std::vector<std::string> rungs = {"pin", "bf16", "hold"};
    std::string from = "last_verified";
    std::string recipe = "block";

    template <class Visitor>
    static void describe(Visitor&& v) {
      using S = Ladder;
      v("rungs", &S::rungs,
        Setting{
            .words = kRungs,
            .accepted = "one or more of `pin`, `recipe`, `bf16`, `hold`, `stop`, in this order",
            .help =
                "The first alarm takes the first rung; each further alarm during containment takes "
                "the next. On `pin`, further sites are searched for first, and pinned ones stay."});
      v("from", &S::from,
        Setting{.words = kWaysBack,
                .help = "Rollback: to the last verified checkpoint, to where the evidence began to "
                        "rise, or none."});
      v("recipe", &S::recipe,
        Setting{.words = run_recipe_names(),
                .help = "Recipe of the rung `recipe` ([recipes.md](recipes.md))."});
    }
    void settle(const TomlTable& table) const;
  } ladder;

  struct Return {
    bool enabled = true;
    int quiet_windows = 2;
    int probe_passes = 2;
    double evidence = 20;
    double backoff = 2.0;
    int quiet_windows_max = 64;

    template <class Visitor>
    static void describe(Visitor&& v) {
      using S = Return;
      v("enabled", &S::enabled,
        Setting{.help = "Try FP8 again after an action, but for one about an offset."});
      v("quiet_windows", &S::quiet_windows,
        Setting{.range = {0, 1e6},
                .help = "Quiet windows after an action before the first probe."});
      v("probe_passes", &S::probe_passes,
        Setting{.range = {1, 1000},
                .help = "Consecutive probe windows, replayed under the run's own plan, within a "
                        "limit: the tolerance plus four deviations, at most the ceiling."});
      v("evidence", &S::evidence,
        Setting{.range = {1, 1e9},
                .help = "The probes' evidence that FP8 is good again must also reach this; below "
                        "1/20, or after 48 probes, they have failed."});
      v("backoff", &S::backoff,
        Setting{.range = {1, 100},
                .help = "A failed probe, or a return, multiplies the wait by this."});
      v("quiet_windows_max", &S::quiet_windows_max,
        Setting{.range = {1, 1e6},
                .otherwise = "`quiet_windows`, if that is more",
                .accepted = "`quiet_windows` … 10⁶, at least 1",
                .help = "Longest wait."});
    }
    void settle(const TomlTable& table);
  } returning;

  struct Limits {
    int actions_max = 8;
    int rollbacks_to_same_step_max = 2;

    template <class Visitor>
    static void describe(Visitor&& v) {
      using S = Limits;
      v("actions_max", &S::actions_max,
        Setting{
            .range = {0, 1e5},
            .help = "Automatic actions in a run, without returns to FP8. The next one is `hold`."});
      v("rollbacks_to_same_step_max", &S::rollbacks_to_same_step_max,
        Setting{.range = {0, 1000},
                .help =
                    "Rollbacks to one step. The next one is BF16 without rollback if `bf16` is a "
                    "rung, the loss is finite, and FP8 or nothing is to blame; else `hold`."});
    }
  } limits;

  struct Controller {
    std::string on_loss = "continue";
    double grace_seconds = 60;

    template <class Visitor>
    static void describe(Visitor&& v) {
      using S = Controller;
      v("on_loss", &S::on_loss,
        Setting{.words = std::span(kOnLossWords).last(3),
                .help = "What the trainer does without a controller."});
      v("grace_seconds", &S::grace_seconds,
        Setting{.range = {0, 1e7}, .help = "It waits this long first."});
    }
  } controller;

  struct Verifier {
    double lease_ttl_seconds = 10;
    int attempts_max = 4;
    std::string on_loss = "continue";
    int loss_windows = 16;
    double share = 1;
    std::vector<std::string> requirements = {};

    template <class Visitor>
    static void describe(Visitor&& v) {
      using S = Verifier;
      v("lease_ttl_seconds", &S::lease_ttl_seconds,
        Setting{.range = {0.1, 86400},
                .help = "A verifier that is silent for this long loses its replay."});
      v("attempts_max", &S::attempts_max,
        Setting{.range = {1, 1000}, .help = "Leases of one replay before it fails."});
      v("on_loss", &S::on_loss,
        Setting{.words = kOnVerifierLoss,
                .help = "What happens to a run without verification. From BF16 it returns by "
                        "probes once verifiers are back."});
      v("loss_windows", &S::loss_windows,
        Setting{.range = {1, 1e6},
                .help = "Consecutive skipped or failed windows until a run counts as without "
                        "verification."});
      v("share", &S::share,
        Setting{.range = {0.01, 100},
                .help = "Share of the verifiers' time, relative to other runs "
                        "([verifiers.md](verifiers.md#shares))."});
      v("requires", &S::requirements,
        Setting{.check = requirement_error,
                .items_most = kRequirementsMax,
                .accepted = "at most 16 of `\"KEY=GLOB\"`",
                .help = "Labels that a verifier must have ([verifiers.md](verifiers.md#labels))."});
    }
  } verifier;

  struct Directives {
    double timeout_seconds = 600;

    template <class Visitor>
    static void describe(Visitor&& v) {
      v("timeout_seconds", &Directives::timeout_seconds,
        Setting{.range = {1e-3, 1e7},
                .help = "Time to answer a directive. A new attempt starts it again."});
    }
  } directives;

  // What a decision about money rests on until it is measured; docs/economics.md.
  struct Economics {
    double speedup = 1.3;
    double spare_fraction = 0;
    double switch_steps = 30;
    double restart_steps = 100;
    double loss_exponent = 0.05;

    template <class Visitor>
    static void describe(Visitor&& v) {
      using S = Economics;
      v("speedup", &S::speedup, Setting{.range = {0.1, 100}, .help = "BF16 step time over FP8's."});
      v("spare_fraction", &S::spare_fraction,
        Setting{.range = {0, 100},
                .help = "Verifiers' devices over the trainers'. 0: verification uses the training "
                        "devices."});
      v("switch_steps", &S::switch_steps,
        Setting{.range = {0, 1e9}, .help = "FP8 steps that loading and switching cost a replay."});
      v("restart_steps", &S::restart_steps,
        Setting{.range = {0, 1e9},
                .help = "FP8 steps that a rollback costs beside those it repeats."});
      v("loss_exponent", &S::loss_exponent,
        Setting{.range = {0.005, 1}, .help = "L ∝ C^−this: what a loss gap is worth in compute."});
    }
  } economics;

  template <class Visitor>
  static void describe(Visitor&& v) {
    v("mode", &Policy::mode,
      Setting{.words = kModes,
              .help = "Whether decisions are carried out by directives; otherwise they are "
                      "measured, explained and recorded."});
    v("window", &Policy::window, Setting{});
    v("verification", &Policy::verification, Setting{});
    v("detector", &Policy::detector, Setting{});
    v("instrument", &Policy::instrument, Setting{});
    v("triage", &Policy::triage, Setting{});
    v("attribution", &Policy::attribution, Setting{});
    v("ladder", &Policy::ladder, Setting{});
    v("return", &Policy::returning, Setting{});
    v("limits", &Policy::limits, Setting{});
    v("controller", &Policy::controller, Setting{});
    v("verifier", &Policy::verifier, Setting{});
    v("directives", &Policy::directives, Setting{});
    v("economics", &Policy::economics, Setting{});
  }

  // Throws ConfigError with file, line, key, value and what is accepted.
  static Policy parse(std::string_view toml, const std::string& file = "policy");
  static Policy load(const std::string& path);
  std::string to_toml() const;
};

std::string_view mode_name(Mode mode);  // observe, advise, enforce
std::optional<Mode> mode_from_name(std::string_view name);

}  // namespace gnomon::decide
