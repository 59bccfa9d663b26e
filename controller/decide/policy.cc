#include "controller/decide/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/named_file.h"
#include "protocol/labels.h"
#include "protocol/precision_plan.h"
#include "protocol/toml_reader.h"

namespace gnomon::decide {
namespace {

constexpr int64_t kStepsMax = 1'000'000'000;
const std::vector<std::string> kModes = {"observe", "advise", "enforce"};
const std::vector<std::string> kRungs = {"pin", "recipe", "bf16", "hold", "stop"};
const std::vector<std::string> kDetectors = {"eprocess", "fixed", "shewhart",
                                             "cusum",    "ewma",  "glr"};

int small(TomlTable& table, const std::string& key, int fallback, int min, int max) {
  return static_cast<int>(table.integer(key, fallback, min, max));
}

void read_window(TomlTable table, Policy::Window& window) {
  window.every = table.integer("every", window.every, 1, kStepsMax);
  window.steps = table.integer("steps", std::min(window.steps, window.every), 1, kStepsMax);
  window.open_max = small(table, "open_max", window.open_max, 1, 1000);
  window.cadence = table.choice("cadence", window.cadence, {"fixed", "optimised"});
  window.every_max =
      table.integer("every_max", std::max(window.every_max, window.every), 1, kStepsMax);
  window.long_steps = table.integer("long_steps", window.long_steps, 0, kStepsMax);
  window.long_every =
      table.integer("long_every", std::max(window.long_every, window.long_steps), 1, kStepsMax);
  if (window.every_max < window.every) {
    table.refuse("every_max", fmt::format("at least every ({} here)", window.every));
  }
  if (window.long_steps > 0 && window.long_steps <= window.steps) {
    table.refuse("long_steps",
                 fmt::format("0 (no long forks) or more than steps ({} here)", window.steps));
  }
  if (window.long_every < window.long_steps) {
    table.refuse("long_every", fmt::format("at least long_steps ({} here): long forks must not "
                                           "overlap",
                                           window.long_steps));
  }
  if (window.steps > window.every) {
    table.refuse(
        table.has("steps") ? "steps" : "every",
        fmt::format("steps of at most every ({} here): windows must not overlap", window.every));
  }
  table.refuse_unknown_keys();
}

void read_detector(TomlTable table, Policy::Detector& detector) {
  detector.kind = table.choice("kind", detector.kind, kDetectors);
  detector.windows_between_false_alarms =
      table.number("windows_between_false_alarms", detector.windows_between_false_alarms, 20, 1e9);
  detector.tolerance_percent =
      table.number("tolerance_percent", detector.tolerance_percent, 0, 100);
  detector.ceiling_percent =
      table.number("ceiling_percent",
                   std::max(detector.ceiling_percent, 2 * detector.tolerance_percent), 1e-6, 1e6);
  detector.jump_deviations = table.number("jump_deviations", detector.jump_deviations, 0, 1000);
  detector.fixed_percent = table.number("fixed_percent", detector.fixed_percent, 1e-6, 1e6);
  detector.prior_scale_percent =
      table.number("prior_scale_percent", detector.prior_scale_percent, 1e-6, 100);
  detector.burn_in_windows = small(table, "burn_in_windows", detector.burn_in_windows, 0, 10000);
  detector.noise = table.choice("noise", detector.noise, {"symmetric", "any"});
  detector.burst = table.boolean("burst", detector.burst);
  detector.accept_percent = table.number("accept_percent", detector.accept_percent, 0, 100);
  if (detector.ceiling_percent <= detector.tolerance_percent) {
    table.refuse(
        table.has("ceiling_percent") ? "ceiling_percent" : "tolerance_percent",
        fmt::format("a ceiling above the tolerance ({} here)", detector.tolerance_percent));
  }
  detector.burn_in_steps = table.integer("burn_in_steps", detector.burn_in_steps, 0, 1'000'000'000);
  detector.spike_sigma = table.number("spike_sigma", detector.spike_sigma, 1, 1000);
  detector.spike_history = small(table, "spike_history", detector.spike_history, 32, 10000);
  // A value can exceed the mean of n others by any number of their deviations, so no upper bound on
  // sigma by n.
  detector.spike_ratio = table.number("spike_ratio", detector.spike_ratio, 1.01, 1e6);
  table.refuse_unknown_keys();
}

void read_instrument(TomlTable table, Policy::Instrument& instrument) {
  instrument.every = small(table, "every", instrument.every, 0, 1'000'000);
  instrument.ratio = table.number("ratio", instrument.ratio, 1.5, 1e6);
  table.refuse_unknown_keys();
}

void read_triage(TomlTable table, Policy::Triage& triage) {
  triage.pairs = small(table, "pairs", triage.pairs, 0, 8);
  triage.transients_max = small(table, "transients_max", triage.transients_max, 0, 1000);
  triage.transient_steps =
      table.integer("transient_steps", triage.transient_steps, 1, 1'000'000'000'000);
  table.refuse_unknown_keys();
}

void read_economics(TomlTable table, Policy::Economics& economics) {
  economics.speedup = table.number("speedup", economics.speedup, 0.1, 100);
  economics.spare_fraction = table.number("spare_fraction", economics.spare_fraction, 0, 100);
  economics.switch_steps = table.number("switch_steps", economics.switch_steps, 0, 1e9);
  economics.restart_steps = table.number("restart_steps", economics.restart_steps, 0, 1e9);
  economics.loss_exponent = table.number("loss_exponent", economics.loss_exponent, 0.005, 1);
  table.refuse_unknown_keys();
}

void read_attribution(TomlTable table, Policy::Attribution& attribution) {
  attribution.scores = table.boolean("scores", attribution.scores);
  attribution.recovered_share =
      table.number("recovered_share", attribution.recovered_share, 0, 0.99);
  attribution.replays_max = small(table, "replays_max", attribution.replays_max, 1, 10000);
  attribution.parallel = small(table, "parallel", attribution.parallel, 1, 64);
  attribution.sites_max = small(table, "sites_max", attribution.sites_max, 1, 10000);
  table.refuse_unknown_keys();
}

void read_ladder(TomlTable table, Policy::Ladder& ladder) {
  ladder.rungs = table.choices("rungs", ladder.rungs, kRungs);
  size_t next = 0;
  for (const std::string& rung : ladder.rungs) {
    const size_t place =
        static_cast<size_t>(std::find(kRungs.begin(), kRungs.end(), rung) - kRungs.begin());
    if (place < next) {
      table.refuse("rungs",
                   "each rung once, in the order \"pin\", \"recipe\", \"bf16\", \"hold\", "
                   "\"stop\": the ladder "
                   "only climbs");
    }
    next = place + 1;
  }
  if (ladder.rungs.empty())
    table.refuse("rungs", "at least one of \"pin\", \"recipe\", \"bf16\", \"hold\", \"stop\"");
  ladder.from = table.choice("from", ladder.from, {"last_verified", "evidence", "here"});
  std::vector<std::string> recipes = recipe_names();
  std::erase(recipes, "none");  // it has no formats of its own
  ladder.recipe = table.choice("recipe", ladder.recipe, recipes);
  table.refuse_unknown_keys();
}

void read_return(TomlTable table, Policy::Return& returning) {
  returning.enabled = table.boolean("enabled", returning.enabled);
  returning.quiet_windows = small(table, "quiet_windows", returning.quiet_windows, 0, 1'000'000);
  returning.probe_passes = small(table, "probe_passes", returning.probe_passes, 1, 1000);
  returning.evidence = table.number("evidence", returning.evidence, 1, 1e9);
  returning.backoff = table.number("backoff", returning.backoff, 1, 100);
  const int fallback = std::max(returning.quiet_windows_max, returning.quiet_windows);
  returning.quiet_windows_max = small(table, "quiet_windows_max", fallback, 1, 1'000'000);
  if (returning.quiet_windows_max < returning.quiet_windows) {
    table.refuse("quiet_windows_max",
                 fmt::format("at least quiet_windows ({} here)", returning.quiet_windows));
  }
  table.refuse_unknown_keys();
}

void read_requirements(TomlTable& verifier, std::vector<std::string>& requirements) {
  requirements = verifier.texts("requires", requirements);
  if (requirements.size() > kRequirementsMax) {
    verifier.refuse("requires", fmt::format("at most {} requirements", kRequirementsMax));
  }
  for (const std::string& requirement : requirements) {
    const std::string accepted = requirement_error(requirement);
    if (!accepted.empty()) verifier.refuse("requires", accepted);
  }
}

void read_rest(TomlTable& root, Policy& policy) {
  TomlTable limits = root.table("limits");
  policy.limits.actions_max = small(limits, "actions_max", policy.limits.actions_max, 0, 100000);
  policy.limits.rollbacks_to_same_step_max = small(
      limits, "rollbacks_to_same_step_max", policy.limits.rollbacks_to_same_step_max, 0, 1000);
  limits.refuse_unknown_keys();
  TomlTable controller = root.table("controller");
  policy.controller.on_loss =
      controller.choice("on_loss", policy.controller.on_loss, {"continue", "bf16", "pause"});
  policy.controller.grace_seconds =
      controller.number("grace_seconds", policy.controller.grace_seconds, 0, 1e7);
  controller.refuse_unknown_keys();
  TomlTable verifier = root.table("verifier");
  policy.verifier.lease_ttl_seconds =
      verifier.number("lease_ttl_seconds", policy.verifier.lease_ttl_seconds, 0.1, 86400);
  policy.verifier.attempts_max =
      small(verifier, "attempts_max", policy.verifier.attempts_max, 1, 1000);
  policy.verifier.on_loss =
      verifier.choice("on_loss", policy.verifier.on_loss, {"continue", "bf16", "hold"});
  policy.verifier.loss_windows =
      small(verifier, "loss_windows", policy.verifier.loss_windows, 1, 1'000'000);
  policy.verifier.share = verifier.number("share", policy.verifier.share, 0.01, 100);
  read_requirements(verifier, policy.verifier.requirements);
  verifier.refuse_unknown_keys();
  TomlTable directives = root.table("directives");
  policy.directives.timeout_seconds =
      directives.number("timeout_seconds", policy.directives.timeout_seconds, 1e-3, 1e7);
  directives.refuse_unknown_keys();
}

// TOML tells 1 and 1.0 apart; a reader of ours accepts both, other people's may not.
std::string toml_number(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

std::string_view mode_name(Mode mode) { return kModes[static_cast<size_t>(mode)]; }

std::optional<Mode> mode_from_name(std::string_view name) {
  const auto found = std::find(kModes.begin(), kModes.end(), name);
  if (found == kModes.end()) return std::nullopt;
  return static_cast<Mode>(found - kModes.begin());
}

Policy Policy::parse(std::string_view toml, const std::string& file) {
  TomlTable root = TomlTable::parse(toml, file);
  Policy policy;
  const std::string mode = root.choice("mode", "enforce", kModes);
  policy.mode = static_cast<Mode>(std::find(kModes.begin(), kModes.end(), mode) - kModes.begin());
  read_window(root.table("window"), policy.window);
  read_detector(root.table("detector"), policy.detector);
  read_instrument(root.table("instrument"), policy.instrument);
  read_triage(root.table("triage"), policy.triage);
  read_attribution(root.table("attribution"), policy.attribution);
  read_ladder(root.table("ladder"), policy.ladder);
  read_return(root.table("return"), policy.returning);
  read_economics(root.table("economics"), policy.economics);
  read_rest(root, policy);
  root.refuse_unknown_keys();
  return policy;
}

Policy Policy::load(const std::string& path) { return parse(read_named_file_or_pipe(path), path); }

namespace {

std::string toml_texts(const std::vector<std::string>& texts) {
  std::vector<std::string> quoted;
  quoted.reserve(texts.size());
  for (const std::string& text : texts) quoted.push_back(toml_quoted(text));
  return fmt::format("[{}]", fmt::join(quoted, ", "));
}

// One [table] of a policy, key by key.
class TomlWriter {
 public:
  explicit TomlWriter(std::string& out) : out_(out) {}
  TomlWriter& table(const char* name) {
    out_ += fmt::format("\n[{}]\n", name);
    return *this;
  }
  TomlWriter& key(const char* name, const std::string& value) {
    return raw(name, fmt::format("\"{}\"", value));
  }
  TomlWriter& key(const char* name, double value) { return raw(name, toml_number(value)); }
  TomlWriter& key(const char* name, int64_t value) { return raw(name, fmt::format("{}", value)); }
  TomlWriter& key(const char* name, int value) { return raw(name, fmt::format("{}", value)); }
  TomlWriter& key(const char* name, bool value) { return raw(name, value ? "true" : "false"); }
  TomlWriter& raw(const char* name, const std::string& value) {
    out_ += fmt::format("{} = {}\n", name, value);
    return *this;
  }

 private:
  std::string& out_;
};

}  // namespace

std::string Policy::to_toml() const {
  std::string out = fmt::format("mode = \"{}\"\n", mode_name(mode));
  TomlWriter to(out);
  to.table("window")
      .key("every", window.every)
      .key("steps", window.steps)
      .key("open_max", window.open_max)
      .key("cadence", window.cadence)
      .key("every_max", window.every_max)
      .key("long_steps", window.long_steps)
      .key("long_every", window.long_every);
  to.table("detector")
      .key("kind", detector.kind)
      .key("windows_between_false_alarms", detector.windows_between_false_alarms)
      .key("tolerance_percent", detector.tolerance_percent)
      .key("ceiling_percent", detector.ceiling_percent)
      .key("jump_deviations", detector.jump_deviations)
      .key("fixed_percent", detector.fixed_percent)
      .key("prior_scale_percent", detector.prior_scale_percent)
      .key("burn_in_windows", detector.burn_in_windows)
      .key("noise", detector.noise)
      .key("burst", detector.burst)
      .key("accept_percent", detector.accept_percent)
      .key("burn_in_steps", detector.burn_in_steps)
      .key("spike_sigma", detector.spike_sigma)
      .key("spike_history", detector.spike_history)
      .key("spike_ratio", detector.spike_ratio);
  to.table("instrument").key("every", instrument.every).key("ratio", instrument.ratio);
  to.table("triage")
      .key("pairs", triage.pairs)
      .key("transients_max", triage.transients_max)
      .key("transient_steps", triage.transient_steps);
  to.table("attribution")
      .key("scores", attribution.scores)
      .key("recovered_share", attribution.recovered_share)
      .key("replays_max", attribution.replays_max)
      .key("parallel", attribution.parallel)
      .key("sites_max", attribution.sites_max);
  to.table("ladder")
      .raw("rungs", fmt::format("[\"{}\"]", fmt::join(ladder.rungs, "\", \"")))
      .key("from", ladder.from)
      .key("recipe", ladder.recipe);
  to.table("return")
      .key("enabled", returning.enabled)
      .key("quiet_windows", returning.quiet_windows)
      .key("probe_passes", returning.probe_passes)
      .key("evidence", returning.evidence)
      .key("backoff", returning.backoff)
      .key("quiet_windows_max", returning.quiet_windows_max);
  to.table("limits")
      .key("actions_max", limits.actions_max)
      .key("rollbacks_to_same_step_max", limits.rollbacks_to_same_step_max);
  to.table("controller")
      .key("on_loss", controller.on_loss)
      .key("grace_seconds", controller.grace_seconds);
  to.table("verifier")
      .key("lease_ttl_seconds", verifier.lease_ttl_seconds)
      .key("attempts_max", verifier.attempts_max)
      .key("on_loss", verifier.on_loss)
      .key("loss_windows", verifier.loss_windows)
      .key("share", verifier.share)
      .raw("requires", toml_texts(verifier.requirements));
  to.table("directives").key("timeout_seconds", directives.timeout_seconds);
  to.table("economics")
      .key("speedup", economics.speedup)
      .key("spare_fraction", economics.spare_fraction)
      .key("switch_steps", economics.switch_steps)
      .key("restart_steps", economics.restart_steps)
      .key("loss_exponent", economics.loss_exponent);
  return out;
}

}  // namespace gnomon::decide
