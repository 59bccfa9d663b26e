#include "lab/rehearsal/trace.h"

#include <fmt/format.h>

#include <bit>
#include <boost/json.hpp>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <span>
#include <sstream>
#include <stdexcept>

#include "base/errors.h"
#include "base/files.h"
#include "controller/decide/decide.h"
#include "protocol/json_text.h"

namespace gnomon::rehearsal {
namespace {

namespace json = boost::json;

using AttemptStep = std::pair<int64_t, int64_t>;
using Losses = std::map<AttemptStep, double>;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// "NaN", "Infinity" and "-Infinity" where a number is not finite, as events have them.
json::value to_value(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

double to_double(const json::value& value) {
  if (value.is_number()) return value.to_number<double>();
  const std::string_view name = value.as_string();
  if (name == "NaN") return kNaN;
  if (name == "Infinity") return std::numeric_limits<double>::infinity();
  if (name == "-Infinity") return -std::numeric_limits<double>::infinity();
  throw std::invalid_argument("a number");
}

json::value to_value(const std::optional<double>& value) {
  return value ? to_value(*value) : json::value(nullptr);
}

std::optional<double> to_optional(const json::value& value) {
  return value.is_null() ? std::nullopt : std::optional<double>(to_double(value));
}

std::string to_string(const json::value& value) {
  return std::string(std::string_view(value.as_string()));
}

// Shortest digits that read back to the same number.
std::string numbers(const std::vector<double>& values) {
  std::string text = "[";
  for (double value : values) {
    if (text.size() > 1) text += ",";
    text += std::isfinite(value) ? fmt::format("{}", value) : json::serialize(to_value(value));
  }
  return text + "]";
}

std::vector<double> to_doubles(const json::value& value) {
  std::vector<double> result;
  for (const json::value& each : value.as_array()) result.push_back(to_double(each));
  return result;
}

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

// ---- steps

bool follows(const TracedEvent& before, const TracedEvent& event) {
  const auto* a = std::get_if<decide::StepReported>(&before.event);
  const auto* b = std::get_if<decide::StepReported>(&event.event);
  return a != nullptr && b != nullptr && !a->state_changed && !b->state_changed &&
         b->attempt == a->attempt && b->step == a->step + 1 && b->plan_version == a->plan_version &&
         b->batch_hash.empty() == a->batch_hash.empty() &&
         b->cast_peak.has_value() == a->cast_peak.has_value() && same(b->seconds, a->seconds) &&
         same(event.at, before.at + b->seconds);
}

// A step has all three numbers of its casts or none.
constexpr struct {
  const char* key;
  std::optional<double> decide::StepReported::*member;
} kCasts[] = {{"cast_saturated", &decide::StepReported::cast_saturated},
              {"cast_flushed", &decide::StepReported::cast_flushed},
              {"cast_peak", &decide::StepReported::cast_peak}};

std::string columns_of_casts(std::span<const TracedEvent> events) {
  std::string text;
  for (const auto& [key, member] : kCasts) {
    std::vector<double> values;
    for (const TracedEvent& event : events) {
      const auto& value = std::get<decide::StepReported>(event.event).*member;
      if (value) values.push_back(*value);
    }
    if (!values.empty()) text += fmt::format(",\"{}\":{}", key, numbers(values));
  }
  return text;
}

std::string line_of_steps(std::span<const TracedEvent> events) {
  const auto& first = std::get<decide::StepReported>(events.front().event);
  std::vector<double> losses, norms;
  std::vector<std::string> hashes;
  for (const TracedEvent& event : events) {
    const auto& step = std::get<decide::StepReported>(event.event);
    losses.push_back(step.loss);
    norms.push_back(step.grad_norm.value());
    if (!step.batch_hash.empty()) hashes.push_back(fmt::format("\"{}\"", step.batch_hash));
  }
  const std::string batches =
      hashes.empty() ? "" : fmt::format(",\"batch_hashes\":[{}]", fmt::join(hashes, ","));
  return fmt::format(
      "{{\"at\":{},\"steps\":{{\"attempt\":{},\"first\":{},\"plan_version\":{},\"seconds\":{},"
      "\"losses\":{},\"grad_norms\":{}{}{}{}}}}}\n",
      events.front().at, first.attempt, first.step, first.plan_version, first.seconds,
      numbers(losses), numbers(norms), batches, columns_of_casts(events),
      first.state_changed ? ",\"state_changed\":true" : "");
}

void read_steps(const json::object& steps, double at, Trace& trace, Losses& reported) {
  decide::StepReported step;
  step.attempt = steps.at("attempt").to_number<int64_t>();
  step.step = steps.at("first").to_number<int64_t>();
  step.plan_version = steps.at("plan_version").to_number<int64_t>();
  step.seconds = to_double(steps.at("seconds"));
  const std::vector<double> losses = to_doubles(steps.at("losses"));
  const std::vector<double> norms = to_doubles(steps.at("grad_norms"));
  if (steps.contains("state_changed")) step.state_changed = true;  // it is the only step
  const json::value* hashes = steps.if_contains("batch_hashes");
  for (size_t i = 0; i < losses.size(); ++i) {
    step.loss = losses[i];
    step.grad_norm = norms.at(i);
    if (hashes != nullptr) step.batch_hash = std::string(hashes->at(i).as_string());
    for (const auto& [key, member] : kCasts) {
      if (const json::value* column = steps.if_contains(key)) {
        step.*member = to_double(column->at(i));
      }
    }
    trace.events.push_back({at, step});
    reported[{step.attempt, step.step}] = step.loss;
    step.step += 1;
    at += step.seconds;
  }
}

// ---- replays

std::vector<double> losses_of_run(const Losses& reported, int64_t attempt,
                                  const std::vector<int64_t>& steps) {
  std::vector<double> losses;
  for (int64_t step : steps) {
    const auto found = reported.find({attempt, step});
    const bool known = found != reported.end() && std::isfinite(found->second);
    losses.push_back(known ? found->second : kNaN);
  }
  return losses;
}

bool consecutive(const std::vector<int64_t>& steps) {
  for (size_t i = 1; i < steps.size(); ++i) {
    if (steps[i] != steps[i - 1] + 1) return false;
  }
  return true;
}

json::object replay_of_defaults() {
  return parse_json_exactly(decide::event_to_json(decide::ReplayFinished{})).as_object();
}

// Without what `attempt` and the reported steps say already, and without what is as it is by
// default; nothing if they do not say it.
std::optional<json::object> short_replay(const decide::ReplayFinished& replay, int64_t attempt,
                                         const Losses& reported) {
  const std::vector<double> known = losses_of_run(reported, attempt, replay.steps);
  if (!consecutive(replay.steps) || known.size() != replay.run_losses.size()) return std::nullopt;
  for (size_t i = 0; i < known.size(); ++i) {
    if (!same(known[i], replay.run_losses[i])) return std::nullopt;
  }
  json::object body = parse_json_exactly(decide::event_to_json(replay)).as_object();
  for (const char* elsewhere : {"steps", "losses", "run_losses"}) body.erase(elsewhere);
  for (const auto& [key, value] : replay_of_defaults()) {
    if (body.contains(key) && body.at(key) == value) body.erase(key);
  }
  return body;
}

std::string line_of_replay(double at, const decide::ReplayFinished& replay, int64_t attempt,
                           const Losses& reported) {
  const std::optional<json::object> body = short_replay(replay, attempt, reported);
  if (!body) {
    return fmt::format("{{\"at\":{},\"type\":\"replay_finished\",\"event\":{}}}\n", at,
                       decide::event_to_json(replay));
  }
  return fmt::format("{{\"at\":{},\"replay\":{},\"attempt\":{},\"first\":{},\"losses\":{}}}\n", at,
                     json::serialize(*body), attempt, replay.steps.empty() ? 0 : replay.steps[0],
                     numbers(replay.losses));
}

decide::Event read_replay(const json::object& line, const Losses& reported) {
  json::object body = replay_of_defaults();
  for (const auto& [key, value] : line.at("replay").as_object()) body[key] = value;
  decide::Event event = decide::event_from_json("replay_finished", json::serialize(body));
  auto& replay = std::get<decide::ReplayFinished>(event);
  replay.losses = to_doubles(line.at("losses"));
  for (size_t i = 0; i < replay.losses.size(); ++i) {
    replay.steps.push_back(line.at("first").to_number<int64_t>() + static_cast<int64_t>(i));
  }
  replay.run_losses =
      losses_of_run(reported, line.at("attempt").to_number<int64_t>(), replay.steps);
  return event;
}

// ---- windows, decisions, the result

json::object to_object(const TracedWindow& window) {
  return {{"window", window.window},
          {"kind", window.kind},
          {"outcome", window.outcome},
          {"attempt", window.attempt},
          {"start_step", window.start_step},
          {"steps", window.steps},
          {"plan_version", window.plan_version},
          {"gap", to_value(window.gap)},
          {"offset", to_value(window.offset)},
          {"d_percent", to_value(window.d_percent)},
          {"gap_error", to_value(window.gap_error)},
          {"rule", window.rule}};
}

TracedWindow read_window(const json::object& object) {
  TracedWindow window;
  window.window = object.at("window").to_number<int64_t>();
  window.kind = to_string(object.at("kind"));
  window.outcome = to_string(object.at("outcome"));
  window.attempt = object.at("attempt").to_number<int64_t>();
  window.start_step = object.at("start_step").to_number<int64_t>();
  window.steps = object.at("steps").to_number<int64_t>();
  window.plan_version = object.at("plan_version").to_number<int64_t>();
  window.gap = to_optional(object.at("gap"));
  window.offset = to_optional(object.at("offset"));
  window.d_percent = to_optional(object.at("d_percent"));
  window.gap_error = to_optional(object.at("gap_error"));
  window.rule = to_string(object.at("rule"));
  return window;
}

TracedDecision read_decision(const json::object& object, double at) {
  decide::RecordDecision decision;
  decision.decision = object.at("decision").to_number<int64_t>();
  decision.kind = DecisionKind::on_record(to_string(object.at("kind")));
  decision.verdict = VerdictName::on_record(to_string(object.at("verdict")));
  decision.action = ActionName::on_record(to_string(object.at("action")));
  decision.enforced = object.at("enforced").as_bool();
  decision.attempt = object.at("attempt").to_number<int64_t>();
  decision.step = object.at("step").to_number<int64_t>();
  decision.window = object.at("window").to_number<int64_t>();
  for (const json::value& site : object.at("sites").as_array()) {
    decision.sites.push_back(to_string(site));
  }
  decision.sentence = to_string(object.at("sentence"));
  decision.evidence = to_string(object.at("evidence"));
  return {at, decision};
}

json::object to_object(const TracedResult& result) {
  return {{"outcome", result.outcome},
          {"step", result.step},
          {"steps_trained", result.steps_trained},
          {"attempts", result.attempts},
          {"heldout_bf16", to_value(result.heldout_bf16)},
          {"seconds", result.seconds},
          {"training_seconds", result.training_seconds},
          {"replay_seconds", result.replay_seconds},
          {"replays", result.replays}};
}

TracedResult read_result(const json::object& object) {
  TracedResult result;
  result.outcome = to_string(object.at("outcome"));
  result.step = object.at("step").to_number<int64_t>();
  result.steps_trained = object.at("steps_trained").to_number<int64_t>();
  result.attempts = object.at("attempts").to_number<int64_t>();
  result.heldout_bf16 = to_double(object.at("heldout_bf16"));
  result.seconds = to_double(object.at("seconds"));
  // Traces of before 27 November 2026 have none.
  const json::value* training = object.if_contains("training_seconds");
  if (training != nullptr) result.training_seconds = to_double(*training);
  result.replay_seconds = to_double(object.at("replay_seconds"));
  result.replays = object.at("replays").to_number<int64_t>();
  return result;
}

std::string text_of_events(const Trace& trace) {
  std::map<int64_t, int64_t> attempts;
  for (const TracedWindow& window : trace.windows) attempts[window.window] = window.attempt;
  std::string text;
  Losses reported;
  for (size_t i = 0; i < trace.events.size();) {
    const TracedEvent& traced = trace.events[i];
    size_t end = i + 1;
    if (std::holds_alternative<decide::StepReported>(traced.event)) {
      while (end < trace.events.size() && follows(trace.events[end - 1], trace.events[end])) ++end;
      const std::span<const TracedEvent> steps(&traced, end - i);
      text += line_of_steps(steps);
      for (const TracedEvent& each : steps) {
        const auto& step = std::get<decide::StepReported>(each.event);
        reported[{step.attempt, step.step}] = step.loss;
      }
    } else if (const auto* replay = std::get_if<decide::ReplayFinished>(&traced.event)) {
      text += line_of_replay(traced.at, *replay, attempts[replay->window], reported);
    } else {
      text += fmt::format("{{\"at\":{},\"type\":\"{}\",\"event\":{}}}\n", traced.at,
                          decide::event_type(traced.event), decide::event_to_json(traced.event));
    }
    i = end;
  }
  return text;
}

void read_line(const json::object& line, Trace& trace, Losses& reported) {
  if (const json::value* setup = line.if_contains("setup")) {
    trace.setup = json::serialize(*setup);
  } else if (const json::value* window = line.if_contains("window")) {
    trace.windows.push_back(read_window(window->as_object()));
  } else if (const json::value* result = line.if_contains("result")) {
    trace.result = read_result(result->as_object());
  } else if (const json::value* decision = line.if_contains("decision")) {
    trace.decisions.push_back(read_decision(decision->as_object(), to_double(line.at("at"))));
  } else if (const json::value* steps = line.if_contains("steps")) {
    read_steps(steps->as_object(), to_double(line.at("at")), trace, reported);
  } else if (line.contains("replay")) {
    trace.events.push_back({to_double(line.at("at")), read_replay(line, reported)});
  } else {
    trace.events.push_back(
        {to_double(line.at("at")),
         decide::event_from_json(to_string(line.at("type")), json::serialize(line.at("event")))});
  }
}

}  // namespace

double as_traced(double value) {
  if (!std::isfinite(value)) return value;
  return std::strtod(fmt::format("{:.6e}", value).c_str(), nullptr);
}

std::string Trace::to_text() const {
  std::string text = fmt::format("{{\"setup\":{}}}\n", setup);
  text += text_of_events(*this);
  for (const TracedWindow& window : windows) {
    text += fmt::format("{{\"window\":{}}}\n", json::serialize(to_object(window)));
  }
  for (const TracedDecision& each : decisions) {
    text += fmt::format("{{\"at\":{},\"decision\":{}}}\n", each.at,
                        decide::effect_to_json(each.decision));
  }
  return text + fmt::format("{{\"result\":{}}}\n", json::serialize(to_object(result)));
}

Trace Trace::from_text(const std::string& text, const std::string& file) {
  Trace trace;
  Losses reported;
  std::istringstream lines(text);
  bool ended = false;
  long long offset = 0;
  for (std::string line; std::getline(lines, line);) {
    try {
      const json::object object = parse_json_exactly(line).as_object();
      read_line(object, trace, reported);
      ended = object.contains("result");
    } catch (const std::exception& error) {
      throw FormatError(file, offset, error.what(), "a line of a rehearsal's trace");
    }
    offset += static_cast<long long>(line.size()) + 1;
  }
  if (!ended) throw FormatError(file, offset, "the end of the file", "a line \"result\"");
  return trace;
}

void Trace::write(const std::filesystem::path& file) const {
  write_file_atomically(file, to_text());
}

Trace Trace::read(const std::filesystem::path& file) {
  return from_text(read_file(file), file.string());
}

}  // namespace gnomon::rehearsal
