// Plays calls of the API, one at a time, against a gnomond of its own and checks after each that
// the daemon keeps its promises. Call number i of a seed is a pure function of (seed, i) and of
// what the model knows when it is made, so that a sequence with some calls left out can be played
// too.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "protocol/client.h"
#include "tests/robustness/api_model.h"
#include "tests/robustness/draw.h"
#include "tests/support/daemon_process.h"

namespace gnomon::robustness {

class ApiPlayer {
 public:
  explicit ApiPlayer(uint64_t seed);

  // Both throw BrokenRule. `finish` stops the daemon and reads what it left.
  void play(int64_t call);
  void finish();

  // What was asked and answered since the daemon's first start, a line each.
  const std::vector<std::string>& lines() const { return lines_; }
  const std::map<std::string, int64_t>& counts() const { return counts_; }
  const test::DaemonProcess& daemon() const { return *daemon_; }

 private:
  using Json = boost::json::value;

  // api_player.cc: one request, and what holds for every answer.
  HttpResponse ask(const std::string& principal, const std::string& method,
                   const std::string& target, const std::string& body = {});
  // The same; the answer must have this status.
  HttpResponse must(int status, const std::string& principal, const std::string& method,
                    const std::string& target, const std::string& body = {});
  // The same; the answer must be a refusal (4xx).
  void must_refuse(const std::string& principal, const std::string& method,
                   const std::string& target, const std::string& body);
  Json rows(const std::string& target);  // all pages
  HttpClient& client_of(const std::string& principal);
  void start();
  void restart(Draw& draw);
  void look_at_runs();
  void look_closely();
  void look_closely(ApiRun& run);
  void check_replays();
  [[noreturn]] void broken(const std::string& rule, const std::string& what) const;
  ApiRun& drawn_run(Draw& draw);
  // Registered, or registered now.
  ApiRun& drawn_known_run(Draw& draw);

  // api_trainer_calls.cc
  void train(Draw& draw);
  void register_run(ApiRun& run);
  void register_otherwise(Draw& draw);
  bool begin_attempt(ApiRun& run, int64_t base_step, const std::string& cause);
  void attempts(Draw& draw);
  void send_steps(ApiRun& run, const std::vector<StepReport>& steps);
  void steps(Draw& draw);
  void extreme_step(Draw& draw);
  void note_step(ApiRun& run, const StepReport& step);
  void send_checkpoint(ApiRun& run, const CheckpointReport& checkpoint);
  void checkpoints(Draw& draw);
  void finished(Draw& draw);
  void notices(Draw& draw);
  void statistics(Draw& draw);
  void poll_directives(Draw& draw);
  void acknowledge(Draw& draw);

  // api_other_calls.cc
  void lease(Draw& draw);
  void heartbeat(Draw& draw);
  void complete(Draw& draw);
  void complete_badly(Draw& draw);
  void fail(Draw& draw);
  void override_run(Draw& draw);
  void policy(Draw& draw);
  void end_run(Draw& draw);
  void delete_run(Draw& draw);
  void read_anything(Draw& draw);
  void follow_events(Draw& draw);
  void back_up(Draw& draw);
  void damaged_body(Draw& draw);

  struct Kind {
    const char* name;
    int weight;
    void (ApiPlayer::*play)(Draw&);
  };
  static const std::vector<Kind>& kinds();

  uint64_t seed_;
  bool with_tokens_;
  test::TemporaryDirectory folder_;  // configuration, policy, tokens, backups
  std::map<std::string, std::string> secrets_;
  std::map<std::string, std::unique_ptr<HttpClient>> clients_;
  std::unique_ptr<test::DaemonProcess> daemon_;
  ApiModel model_;
  std::vector<std::string> lines_;
  std::map<std::string, int64_t> counts_;
};

}  // namespace gnomon::robustness
