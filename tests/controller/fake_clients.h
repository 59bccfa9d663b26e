// A trainer and a verifier that speak the real protocol and invent their numbers.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "protocol/client.h"
#include "protocol/json.h"

namespace gnomon {

Fingerprint test_fingerprint();
RunRegistration test_registration(const std::string& name = "test",
                                  const std::string& job_id = "1");
StepReport test_step(int64_t step, int64_t attempt = 1);
CheckpointReport test_checkpoint(int64_t step, int64_t attempt = 1);

// Registers, starts attempts, reports. Each call throws ApiError when the daemon refuses.
class FakeTrainer {
 public:
  explicit FakeTrainer(const std::string& url) { connect(url); }
  void connect(const ClientOptions& access) { client_ = std::make_unique<HttpClient>(access); }
  void connect(const std::string& url) { connect(ClientOptions{.url = url}); }
  HttpClient& client() { return *client_; }
  // Registration, attempt 1, the checkpoint of step 0.
  void begin(const RunRegistration& registration = test_registration());
  // Steps from..to of `attempt`, with a checkpoint at each fifth.
  void train(int64_t from, int64_t to, int64_t attempt = 1);
  ReportAck post_steps(const StepBatch& batch);
  DirectiveList poll(int64_t after, const std::string& wait = "0");
  Directive ack(int64_t number, const DirectiveAck& ack);
  std::string path(const std::string& rest) const { return "/v1/runs/" + run + rest; }

  std::string run;

 private:
  std::unique_ptr<HttpClient> client_;
};

class FakeVerifier {
 public:
  explicit FakeVerifier(const std::string& url, std::string verifier_name = "verifier:1")
      : name(std::move(verifier_name)) {
    connect(url);
  }
  void connect(const ClientOptions& access) { client_ = std::make_unique<HttpClient>(access); }
  void connect(const std::string& url) { connect(ClientOptions{.url = url}); }
  HttpClient& client() { return *client_; }
  std::optional<Lease> lease(const std::string& wait = "0");
  // A result as a healthy replay gives it: the trainer's own numbers in arm `same`, a gap of `gap`
  // nats otherwise.
  ReplayResult result(const Lease& lease, double gap) const;
  void complete(const Lease& lease, double gap);
  // And, as a verifier's first window is measured twice, the replay that confirms it: as an honest
  // source answers, with the same bits. Throws where none is asked for.
  void complete_twice(const Lease& first, double gap);

  std::string name;
  Labels labels;

 private:
  std::unique_ptr<HttpClient> client_;
};

// The policy that the daemon tests use: windows of five steps, one after another.
std::string test_policy();

// Lets a verifier answer with a large gap until a directive is there; returns it.
Directive provoke_directive(FakeTrainer& trainer, FakeVerifier& verifier);

}  // namespace gnomon
