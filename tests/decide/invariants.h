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
  void check_effect(const Effect& effect, const Policy& policy);

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
};

}  // namespace gnomon::decide
