#include "controller/decide/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/files.h"
#include "protocol/toml_reader.h"

namespace gnomon::decide {
namespace {

constexpr int64_t kStepsMax = 1'000'000'000;
const std::vector<std::string> kModes = {"observe", "advise", "enforce"};
const std::vector<std::string> kRungs = {"pin", "bf16", "hold"};

int small(TomlTable& table, const std::string& key, int fallback, int min, int max) {
  return static_cast<int>(table.integer(key, fallback, min, max));
}

void read_window(TomlTable table, Policy::Window& window) {
  window.every = table.integer("every", window.every, 1, kStepsMax);
  window.steps = table.integer("steps", std::min(window.steps, window.every), 1, kStepsMax);
  window.open_max = small(table, "open_max", window.open_max, 1, 1000);
  if (window.steps > window.every) {
    table.refuse(
        table.has("steps") ? "steps" : "every",
        fmt::format("steps of at most every ({} here): windows must not overlap", window.every));
  }
  table.refuse_unknown_keys();
}

void read_detector(TomlTable table, Policy::Detector& detector) {
  detector.tolerance_percent =
      table.number("tolerance_percent", detector.tolerance_percent, 1e-6, 100);
  detector.burn_in_steps = table.integer("burn_in_steps", detector.burn_in_steps, 0, 1'000'000'000);
  detector.spike_sigma = table.number("spike_sigma", detector.spike_sigma, 1, 1000);
  detector.spike_history = small(table, "spike_history", detector.spike_history, 32, 10000);
  // A value can exceed the mean of n others by any number of their deviations, so no upper bound on
  // sigma by n.
  detector.spike_ratio = table.number("spike_ratio", detector.spike_ratio, 1.01, 1e6);
  table.refuse_unknown_keys();
}

void read_attribution(TomlTable table, Policy::Attribution& attribution) {
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
      table.refuse(
          "rungs",
          "each rung once, in the order \"pin\", \"bf16\", \"hold\": the ladder only climbs");
    }
    next = place + 1;
  }
  if (ladder.rungs.empty()) table.refuse("rungs", "at least one of \"pin\", \"bf16\", \"hold\"");
  ladder.from = table.choice("from", ladder.from, {"last_verified", "here"});
  table.refuse_unknown_keys();
}

void read_return(TomlTable table, Policy::Return& returning) {
  returning.enabled = table.boolean("enabled", returning.enabled);
  returning.quiet_windows = small(table, "quiet_windows", returning.quiet_windows, 0, 1'000'000);
  returning.probe_passes = small(table, "probe_passes", returning.probe_passes, 1, 1000);
  returning.backoff = table.number("backoff", returning.backoff, 1, 100);
  const int fallback = std::max(returning.quiet_windows_max, returning.quiet_windows);
  returning.quiet_windows_max = small(table, "quiet_windows_max", fallback, 1, 1'000'000);
  if (returning.quiet_windows_max < returning.quiet_windows) {
    table.refuse("quiet_windows_max",
                 fmt::format("at least quiet_windows ({} here)", returning.quiet_windows));
  }
  table.refuse_unknown_keys();
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
  read_attribution(root.table("attribution"), policy.attribution);
  read_ladder(root.table("ladder"), policy.ladder);
  read_return(root.table("return"), policy.returning);
  read_rest(root, policy);
  root.refuse_unknown_keys();
  return policy;
}

Policy Policy::load(const std::string& path) { return parse(read_file(path), path); }

std::string Policy::to_toml() const {
  std::string out = fmt::format("mode = \"{}\"\n", mode_name(mode));
  out += fmt::format("\n[window]\nevery = {}\nsteps = {}\nopen_max = {}\n", window.every,
                     window.steps, window.open_max);
  out += fmt::format(
      "\n[detector]\ntolerance_percent = {}\nburn_in_steps = {}\nspike_sigma = {}\nspike_history = "
      "{}\nspike_ratio = "
      "{}\n",
      toml_number(detector.tolerance_percent), detector.burn_in_steps,
      toml_number(detector.spike_sigma), detector.spike_history, toml_number(detector.spike_ratio));
  out += fmt::format(
      "\n[attribution]\nrecovered_share = {}\nreplays_max = {}\nparallel = {}\nsites_max = {}\n",
      toml_number(attribution.recovered_share), attribution.replays_max, attribution.parallel,
      attribution.sites_max);
  out += fmt::format("\n[ladder]\nrungs = [\"{}\"]\nfrom = \"{}\"\n",
                     fmt::join(ladder.rungs, "\", \""), ladder.from);
  out += fmt::format(
      "\n[return]\nenabled = {}\nquiet_windows = {}\nprobe_passes = {}\nbackoff = "
      "{}\nquiet_windows_max = {}\n",
      returning.enabled, returning.quiet_windows, returning.probe_passes,
      toml_number(returning.backoff), returning.quiet_windows_max);
  out += fmt::format("\n[limits]\nactions_max = {}\nrollbacks_to_same_step_max = {}\n",
                     limits.actions_max, limits.rollbacks_to_same_step_max);
  out += fmt::format("\n[controller]\non_loss = \"{}\"\ngrace_seconds = {}\n", controller.on_loss,
                     toml_number(controller.grace_seconds));
  out += fmt::format("\n[verifier]\nlease_ttl_seconds = {}\nattempts_max = {}\n",
                     toml_number(verifier.lease_ttl_seconds), verifier.attempts_max);
  out += fmt::format("\n[directives]\ntimeout_seconds = {}\n",
                     toml_number(directives.timeout_seconds));
  return out;
}

}  // namespace gnomon::decide
