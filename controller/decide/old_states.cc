#include "controller/decide/old_states.h"

#include <boost/json/array.hpp>

namespace gnomon::decide {
namespace {

namespace json = boost::json;

// Up to ledger version 3 a fixed tolerance was the detector, and a case had fields for each test.
constexpr const char* kOldDetector = "detector";

int64_t window_of_case(const json::object& state) {
  const json::value* open = state.if_contains("investigation");
  if (open == nullptr || !open->is_object()) return 0;
  const json::value* window = open->get_object().if_contains("window");
  return window != nullptr && window->is_int64() ? window->get_int64() : 0;
}

bool belongs_to(const json::value& entry, const char* member, int64_t id) {
  if (!entry.is_object()) return false;
  const json::value* found = entry.get_object().if_contains(member);
  return found != nullptr && found->is_int64() && found->get_int64() == id;
}

bool has_gap(const json::object& window) {
  const json::value* measured = window.if_contains("measured");
  return measured != nullptr && measured->is_object();
}

json::object alarm_of(const json::object& window) {
  json::value d = window.at("measured").at("d_percent");
  return {{"alarm", true},        {"suspicious", false}, {"rule", "ceiling"},
          {"statistic", d},       {"threshold", 0.0},    {"x", 0.0},
          {"scale_percent", 0.0}, {"null_percent", 0.0}, {"freedom", 0.0},
          {"burst_left", 0}};
}

void judge_again(json::object& window) {
  if (!has_gap(window)) return;
  window["judged"] = alarm_of(window);
  window["deferred"] = true;
}

const json::value* member(const json::object& of, const char* outer, const char* inner) {
  const json::value* found = of.if_contains(outer);
  if (found == nullptr || !found->is_object()) return nullptr;
  return found->get_object().if_contains(inner);
}

// A state from before there was a standing: what was verified had been measured.
void add_standing(json::object& state) {
  const json::value* step = member(state, "last_verified", "step");
  const json::value* windows = member(state, "watch", "windows_judged");
  if (state.contains("standing") || step == nullptr || windows == nullptr) return;
  state["standing"] = {{"condition", ""},
                       {"since", 0.0},
                       {"first_base", 0},
                       {"measured_step", *step},
                       {"measured_windows", *windows},
                       {"last_window", 0},
                       {"last_start", 0},
                       {"last_d_percent", 0.0},
                       {"harm", ""},
                       {"directives_unapplied", 0},
                       {"reported_at", 0.0},
                       {"steps_at", json::array()}};
}

// A containment from before probes were kept one by one: its series begins anew.
void begin_probes(json::object& state) {
  json::value* containment = state.if_contains("containment");
  if (containment == nullptr || !containment->is_object()) return;
  for (const char* name : {"probe_passes", "log_evidence", "limit_percent", "margin_percent",
                           "probed_by", "probed_by_others", "tolerated_percent"})
    containment->get_object().erase(name);
}

}  // namespace

void upgrade_state(json::object& state) {
  add_standing(state);
  begin_probes(state);
  if (!state.contains(kOldDetector)) return;
  state.erase(kOldDetector);
  const int64_t in_case = window_of_case(state);
  state["investigation"] = nullptr;
  json::array replays;
  if (const json::value* known = state.if_contains("replays"); known && known->is_array()) {
    for (const json::value& replay : known->get_array()) {
      if (!replay.is_object() || belongs_to(replay, "window", in_case)) continue;
      json::object kept = replay.get_object();
      kept.erase("prefix");
      replays.emplace_back(std::move(kept));
    }
    state["replays"] = std::move(replays);
  }
  json::value* windows = state.if_contains("windows");
  if (windows == nullptr || !windows->is_array()) return;
  for (json::value& window : windows->get_array()) {
    if (!window.is_object()) continue;
    json::object& known = window.get_object();
    const json::value* deferred = known.if_contains("deferred");
    const bool waited = deferred != nullptr && deferred->is_bool() && deferred->get_bool();
    if (waited || belongs_to(window, "id", in_case)) judge_again(known);
  }
}

}  // namespace gnomon::decide
