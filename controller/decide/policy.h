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
  } window;

  struct Detector {
    double tolerance_percent = 0.5;  // alarm when 100·gap/L16 exceeds it
    int64_t burn_in_steps = 0;  // windows that begin before it are measured but raise no gap alarm
    double spike_sigma =
        7.0;  // step loss above the trend + this many standard deviations, current step excluded
    int spike_history = 128;  // steps
    double spike_ratio =
        10.0;  // or above this many times the largest of the first 100 finite losses
  } detector;

  struct Attribution {
    double recovered_share =
        0.25;  // a rescue recovers when it leaves at most this share of the gap (or the tolerance)
    int replays_max = 40;  // then the whole run goes to BF16
    int parallel = 2;      // replays ordered at a time
    int sites_max = 8;     // more guilty sites than this: the whole run goes to BF16
  } attribution;

  struct Ladder {
    std::vector<std::string> rungs = {"pin", "bf16", "hold"};  // tried in this order
    std::string from = "last_verified";                        // or "here"
  } ladder;

  struct Return {
    bool enabled = true;
    int quiet_windows = 2;  // after an action, before the first probe
    int probe_passes = 2;   // consecutive passing probe windows before FP8 comes back
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
    int attempts_max = 4;  // leases of one replay before it is given up
  } verifier;

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
