// The fallback policy: one TOML file that says when FP8 is blamed and what is done about it.
// docs/policy.md explains it key by key. Parsing refuses unknown keys, wrong types, contradictions
// and values out of range with a ConfigError (file, line, key, value, accepted).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gnomon::decide {

enum class Mode { kObserve, kAdvise, kEnforce };

struct Policy {
  Mode mode = Mode::kEnforce;

  struct Window {
    int64_t every =
        50;  // steps from one window's start to the next; a multiple of the checkpoint interval
    int64_t steps = 25;  // K; a multiple of the checkpoint interval, at most `every`
    int open_max =
        4;  // windows waiting for verifiers; beyond it a new window is skipped, and recorded so
    std::string cadence =
        "fixed";               // or "optimised": `every` follows the economics, up to every_max
    int64_t every_max = 1000;  // cadence "optimised"
    int64_t long_steps = 0;    // length of a long fork; 0 = none
    int64_t long_every = 500;  // steps from one long fork's start to the next
  } window;

  struct Detector {
    std::string kind = "eprocess";  // gap_detector.h, gap_rivals.h
    double windows_between_false_alarms = 10000;
    double tolerance_percent = 0.25;    // a mean gap up to this is none
    double ceiling_percent = 1;         // one window's gap above it is looked into at once
    double jump_deviations = 5;         // or so many deviations over the null, if pairs can say
                                        // whether that was chance; 0 = off
    double fixed_percent = 0.25;        // of the rival "fixed"
    double prior_scale_percent = 0.05;  // of D's deviation before anything was learned
    int burn_in_windows = 15;           // that the null is learned over
    std::string noise = "symmetric";    // or "any": slower, and silent until the scale was learned
    bool burst = true;                  // a suspicion orders windows back to back
    double accept_percent = 0.5;  // a small gap that will stay under it is accepted; 0 = never
    int64_t burn_in_steps = 0;  // windows that begin before it are measured but raise no gap alarm
    double spike_sigma =
        7.0;  // step loss above the trend + this many standard deviations, current step excluded
    int spike_history = 128;  // steps
    double spike_ratio =
        10.0;  // or above this many times the largest of the first 100 finite losses
  } detector;

  // Whether the instrument itself is sound: BF16 against BF16 with another order of sums.
  struct Instrument {
    int every = 20;      // windows from one check to the next; 0 = never
    double ratio = 5.0;  // RMS over this many times its history: broken
  } instrument;

  struct Triage {
    int pairs = 3;  // nudged replays of FP8 and of BF16 that rule out chance; 0 = not asked
    int transients_max = 1;           // transient faults on one host; the next one is persistent
    int64_t transient_steps = 10000;  // for so long a transient fault is remembered
  } triage;

  struct Attribution {
    bool scores = true;  // rank the sites by an analysis of the checkpoint first
    double recovered_share =
        0.25;              // a rescue takes a spike away when it leaves at most this share of it
    int replays_max = 40;  // then the whole run goes to BF16
    int parallel = 2;      // replays ordered at a time
    int sites_max = 8;     // more guilty sites than this: the whole run goes to BF16
  } attribution;

  struct Ladder {
    std::vector<std::string> rungs = {"pin", "bf16", "hold"};  // tried in this order
    std::string from = "last_verified";  // or "evidence": where it began to rise; or "here"
    std::string recipe = "block";        // of the rung "recipe"
  } ladder;

  struct Return {
    bool enabled = true;
    int quiet_windows = 2;  // after an action, before the first probe
    int probe_passes = 2;   // consecutive passing probe windows before FP8 comes back
    double evidence = 20;   // and their evidence for equivalence must have reached this
    double backoff = 2.0;   // a failed probe multiplies the waiting windows by this
    int quiet_windows_max = 64;
  } returning;

  struct Limits {
    int actions_max = 8;  // automatic actions per run; then hold and ask (circuit breaker)
    int rollbacks_to_same_step_max = 2;
  } limits;

  struct Controller {
    std::string on_loss =
        "continue";  // trainer's behaviour when the controller is away: continue, bf16, pause
    double grace_seconds = 60;  // before that
  } controller;

  struct Verifier {
    double lease_ttl_seconds = 10;
    int attempts_max = 4;              // leases of one replay before it is given up
    std::string on_loss = "continue";  // when windows go unverified: continue, bf16, hold
    int loss_windows = 16;             // so many in a row
    double share = 1;                  // of the verifiers' time, against other runs' shares
    std::vector<std::string> requirements = {};  // `requires`: labels, protocol/labels.h
  } verifier;

  // What a decision about money rests on until it is measured; docs/economics.md.
  struct Economics {
    double speedup = 1.3;         // s: BF16 step time over FP8's
    double spare_fraction = 0;    // verifiers' devices over the trainers'; 0 = they are the same
    double switch_steps = 30;     // c: FP8 steps that a replay's loading and switching cost
    double restart_steps = 100;   // R: FP8 steps that a rollback costs beside those repeated
    double loss_exponent = 0.05;  // L ∝ C^−this
  } economics;

  struct Directives {
    double timeout_seconds = 600;  // for the trainer's answer to a directive
  } directives;

  static Policy parse(std::string_view toml, const std::string& file = "policy");
  static Policy load(const std::string& path);
  std::string to_toml() const;
};

std::string_view mode_name(Mode mode);  // observe, advise, enforce
std::optional<Mode> mode_from_name(std::string_view name);

}  // namespace gnomon::decide
