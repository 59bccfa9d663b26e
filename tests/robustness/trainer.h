// A trainer of a history: reports as a spool does, in order and until it is acknowledged, carries
// directives out, and is restarted now and then. It notes what it was told and says what must not
// be.
#pragma once

#include "tests/robustness/draw.h"
#include "tests/robustness/endpoint.h"

namespace gnomon::robustness {

class Trainer {
 public:
  Trainer(Scene& scene, const RunScenario& scenario);

  // The next thing there is to do: up to five steps with their checkpoint and the directives that
  // came, or the end. False when the run has ended and when the history is too late.
  bool turn();
  void run() {
    while (turn()) {
    }
  }
  const std::string& run_path() const { return path_; }

 private:
  template <typename Message>
  std::optional<Endpoint::Answer> report(const std::string& where, const Message& message);
  // Also checks what the answer counts; `steps` of the message, all of them new.
  template <typename Message>
  bool report_new(const std::string& where, const Message& message, int64_t facts,
                  int64_t* accepted = nullptr);

  bool begin();
  bool start_attempt(int64_t base_step, const std::string& cause);
  bool send_steps(int64_t to);
  bool send_checkpoint();
  bool send_notice();
  bool ask_for_old();
  bool follow_directives();
  bool carry_out(const Directive& directive);
  bool acknowledge(const Directive& directive, const std::string& state);
  bool roll_back(const Directive& directive);
  bool finish(const std::string& outcome);
  std::string look_at(const Directive& directive);  // what is wrong with it
  void violation(const std::string& what);

  Scene& scene_;
  RunScenario scenario_;
  Draw draw_;
  Endpoint endpoint_;
  std::string path_;
  int64_t attempt_ = 0;
  int64_t step_ = 0;
  int64_t plan_version_ = 1;
  int64_t checkpoint_ = 0;  // step of the newest one of this attempt's line
  int64_t after_ = 0;       // directives up to here have been answered
  bool stopped_ = false;
};

}  // namespace gnomon::robustness
