#include <SQLiteCpp/Statement.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <variant>

#include "controller/notify/body.h"
#include "controller/notify/receiver.h"
#include "tests/robustness/findings.h"
#include "tests/robustness/replay_core.h"

namespace gnomon::robustness {
namespace {

using Members = std::map<std::string, std::string>;

// A message as its receiver can tell it from another, without times and its name.
struct Delivered {
  std::string run_id;
  std::string place;  // "decision N" or "notice N: TEXT"; empty for others
  std::string line;
  bool is_notice() const { return place.starts_with("notice"); }
};

Delivered delivered_of(const std::string& status, Members labels, Members annotations) {
  annotations.erase("delivery");
  std::string place;
  if (labels.contains("decision")) place = "decision " + labels["decision"];
  if (labels.contains("notice")) {
    place = fmt::format("notice {}: {}", labels["notice"], annotations["description"]);
  }
  return {labels["run_id"], place, fmt::format("{} {} {}", status, labels, annotations)};
}

Members members_of(const boost::json::value& value) {
  Members members;
  for (const auto& [name, text] : value.as_object()) {
    members[std::string(name)] = std::string(text.as_string());
  }
  return members;
}

Delivered delivered_of(const Arrival& arrival) {
  const boost::json::value body = boost::json::parse(arrival.body);
  const boost::json::value& alert = body.at("alerts").at(0);
  return delivered_of(std::string(alert.at("status").as_string()), members_of(alert.at("labels")),
                      members_of(alert.at("annotations")));
}

Delivered delivered_of(const notify::Alert& alert) {
  return delivered_of(alert.resolved() ? "resolved" : "firing", alert.labels, alert.annotations);
}

// What a receiver must be told of a run, as it is on record.
class Due {
 public:
  Due(const RunRow& row, const decide::Policy& policy, const notify::Receiver& receiver)
      : row_(row), policy_(policy), receiver_(receiver) {}

  void handle(const cli::RecordedEvent& event, const decide::State& state,
              const std::vector<decide::Effect>& effects) {
    const notify::Subject subject = subject_of(state);
    if (const auto* attempt = std::get_if<decide::AttemptStarted>(&event.event)) {
      add(notify::attempt_alert(subject, *attempt, event.time));
    }
    for (const decide::Effect& effect : effects) {
      if (const auto* decision = std::get_if<decide::RecordDecision>(&effect)) {
        add(notify::decision_alert(subject, *decision, event.time));
      } else if (const auto* quarantine = std::get_if<decide::QuarantineVerifier>(&effect)) {
        add(notify::quarantine_alert(subject, *quarantine, event.time));
      }
    }
    handle_conditions(subject, state, event.time);
    if (const auto* ended = std::get_if<decide::RunEnded>(&event.event)) {
      add(notify::ended_alert(subject, *ended, state.attempt.number, event.time));
    }
  }
  std::vector<Delivered> lines;

 private:
  notify::Subject subject_of(const decide::State& state) const {
    return {row_.id, row_.name, row_.job_id,
            std::string(decide::mode_name(decide::mode_in_force(state, policy_)))};
  }
  void add(const notify::Alert& alert) {
    if (receiver_.wants(alert)) lines.push_back(delivered_of(alert));
  }
  void handle_conditions(const notify::Subject& subject, const decide::State& state, double time) {
    const uint32_t hold = notify::conditions_that_hold(state);
    for (size_t i = 0; i < notify::kConditionKinds.size(); ++i) {
      const auto condition = static_cast<notify::Condition>(1u << i);
      const auto begun = begun_.find(condition);
      if ((hold & condition) == 0 && begun != begun_.end()) {
        begun->second.ends_at = time;
        add(begun->second);
        begun_.erase(begun);
      } else if ((hold & condition) != 0 && begun == begun_.end()) {
        add(begun_[condition] = notify::condition_alert(subject, condition, state, time));
      }
    }
  }

  const RunRow& row_;
  const decide::Policy& policy_;
  const notify::Receiver& receiver_;
  std::map<notify::Condition, notify::Alert> begun_;
};

// The first difference of two sequences.
void compare(const std::string& who, const char* what, const std::vector<std::string>& due,
             const std::vector<std::string>& came, Findings& findings) {
  for (size_t i = 0; i < std::max(due.size(), came.size()); ++i) {
    const std::string& a = i < due.size() ? due[i] : "nothing";
    const std::string& b = i < came.size() ? came[i] : "nothing";
    if (a == b) continue;
    findings.add("{}: {} {} to be told is\n    {}\n  and came as\n    {}", who, what, i + 1, a, b);
    return;
  }
}

// Notices are no events of the core: the stream says where they stand among its decisions.
std::vector<std::string> places_on_record(SQLite::Database& ledger, int64_t run,
                                          const std::set<std::string>& decisions) {
  std::vector<std::string> places;
  SQLite::Statement rows(
      ledger,
      "SELECT CASE type WHEN 'notice' THEN 'notice ' || json_extract(body, '$.notice') || ': ' || "
      "json_extract(body, '$.text') ELSE 'decision ' || json_extract(body, '$.decision') END "
      "FROM stream WHERE run = ? AND type IN ('notice', 'decision') ORDER BY id");
  rows.bind(1, run);
  while (rows.executeStep()) {
    const std::string place = rows.getColumn(0).getString();
    if (place.starts_with("notice") || decisions.contains(place)) places.push_back(place);
  }
  return places;
}

// What came of a run: of each message the first arrival.
std::vector<Delivered> order_of_arrivals(const std::string& who, const std::string& run_id,
                                         const Hook& hook, bool late_copies, Findings& findings) {
  struct Message {
    const Arrival* first;
    int64_t ended;
  };
  const std::vector<Arrival> arrivals = hook.arrivals();
  std::vector<Delivered> delivered;
  std::vector<Message> messages;
  for (const Arrival& arrival : arrivals) {
    Delivered one = delivered_of(arrival);
    if (one.run_id != run_id) continue;
    const auto known = std::ranges::find_if(
        messages, [&](const Message& m) { return m.first->delivery == arrival.delivery; });
    if (known == messages.end()) {
      if (!messages.empty() && (messages.back().ended == 0 || messages.back().ended > arrival.came))
        findings.add("{}: {} came before {} was taken", who, one.line, delivered.back().line);
      messages.push_back({&arrival, arrival.ended});
      delivered.push_back(std::move(one));
      continue;
    }
    if (known->first->body != arrival.body) {
      findings.add("{}: delivery {} came again as another message", who, arrival.delivery);
    }
    if (known + 1 != messages.end() && !arrival.abandoned && !late_copies) {
      findings.add("{}: {} came again behind later ones", who, one.line);
    }
    // While the link is down an earlier copy may be answered later: nobody is seen to have left.
    if (arrival.ended != 0 && (known->ended == 0 || arrival.ended < known->ended)) {
      known->ended = arrival.ended;
    }
  }
  if (!messages.empty() && messages.back().ended == 0) {
    findings.add("{}: {} was never taken and does not wait any more", who, delivered.back().line);
  }
  return delivered;
}

}  // namespace

void check_signatures(const Hook& hook, Findings& findings) {
  for (const Arrival& arrival : hook.arrivals()) {
    const std::string& given = arrival.signature;
    const bool timed = given.starts_with("t=") && given.size() > 2 && std::isdigit(given[2]) != 0;
    if (timed &&
        given == notify::signature(arrival.body, std::stoll(given.substr(2)), {hook.secret()})) {
      continue;
    }
    findings.add("{}: delivery {} is signed \"{}\"", hook.name(), arrival.delivery, given);
  }
}

void check_messages(SQLite::Database& ledger, const std::string& path, const RunRecord& run,
                    const Hook& hook, bool late_copies, Findings& findings) {
  const std::string who = fmt::format("{} to {}", run.scenario.name(), hook.name());
  const cli::LedgerView view(path);
  const std::vector<RunRow> rows = view.runs();
  const auto row = std::ranges::find(rows, run.id, &RunRow::id);
  if (row == rows.end()) return;  // check_core says so
  const decide::Policy policy = decide::Policy::parse(row->policy);
  notify::Receiver receiver;
  receiver.minimum_severity = hook.minimum_severity();
  Due due(*row, policy, receiver);
  replay_core(view, path, run.id, policy,
              [&](const auto& event, const auto& state, const auto& effects) {
                due.handle(event, state, effects);
              });
  const std::vector<Delivered> came =
      order_of_arrivals(who, fmt::format("run-{}", run.id), hook, late_copies, findings);
  std::vector<std::string> events_due, events_came, places_came;
  std::set<std::string> decisions;
  for (const Delivered& delivered : due.lines) {
    events_due.push_back(delivered.line);
    decisions.insert(delivered.place);
  }
  for (const Delivered& delivered : came) {
    if (!delivered.is_notice()) events_came.push_back(delivered.line);
    if (!delivered.place.empty()) places_came.push_back(delivered.place);
  }
  compare(who, "message", events_due, events_came, findings);
  compare(who, "decision or notice", places_on_record(ledger, run.id, decisions), places_came,
          findings);
}

}  // namespace gnomon::robustness
