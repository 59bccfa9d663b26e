// What must hold of the decision core's effects, whatever it hears. Every simulated and random run
// goes through here.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "controller/decide/decide.h"

namespace gnomon::decide {

class Invariants {
 public:
  // Reports a violation as a GoogleTest failure.
  void check(const Event& event, const Outcome& outcome, const Policy& policy);

 private:
  void check_effect(const Effect& effect);
  void check_directive(const IssueDirective& directive);
  void check_own_directive(const IssueDirective& directive);
  void check_open_directives(const Event& event, const State& after);
  void check_named(const Outcome& outcome) const;
  static void check_bounds(const State& state, const Policy& policy);
  static void check_evidence(const State& state);
  void check_non_finite(const Event& event, const State& state) const;

  struct Window {
    std::string start_uri;
    std::string end_uri;
  };
  std::map<int64_t, Window> open_;
  std::set<std::string> protected_;
  int64_t last_window_ = 0;
  int64_t last_replay_ = 0;
  int64_t last_directive_ = 0;
  int64_t last_decision_ = 0;
  int64_t verified_step_ = -1;
  int alarms_ = 0;  // since the last directive
  int passes_ = 0;
  int refusals_ = 0;
  bool announced_ = false;  // an enforced decision stands before the directive
  bool ended_ = false;
  bool overridden_ = false;     // the event is an operator's
  bool muted_ = false;          // silenced before and after the event
  bool operator_plan_ = false;  // so it is with an operator's plan
  Mode mode_ = Mode::kEnforce;
  bool override_said_ = false;  // in this event
  DirectivePurpose purpose_;    // of the core's own directive after the event
  int64_t own_ = 0;             // its number
  std::set<int64_t> open_directives_;
  int64_t stop_ = 0;  // directive that told the run to stop; 0 = none
  State before_;
};

}  // namespace gnomon::decide
