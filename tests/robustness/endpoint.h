// How a client of a history speaks to a daemon that dies, is away, or answers too late: it sends
// the same request again until an answer decides what became of it.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "protocol/client.h"
#include "tests/robustness/record.h"

namespace gnomon::robustness {

// Where the daemon can be reached, which changes with each of its starts, and whether the history
// is over.
class Scene {
 public:
  Scene(Record& the_record, std::chrono::steady_clock::time_point end)
      : record(the_record), end_(end) {}

  // Where the daemon listens, and where clients reach it: there, unless a proxy is between.
  void move_to(int port) { port_ = port; }
  int port() const { return port_; }
  int client_port() const { return proxy_port > 0 ? proxy_port : port_.load(); }
  // Too late for anything: a history that comes to this is a violation, noted by whoever waits.
  bool late() const { return given_up || std::chrono::steady_clock::now() > end_; }

  Record& record;
  std::atomic<int> trainers_running = 0;
  std::atomic<int64_t> requests = 0;   // answered, whatever the answer was
  std::atomic<bool> over = false;      // trainers are through: the others leave
  std::atomic<bool> given_up = false;  // the daemon cannot be had any more
  int proxy_port = 0;                  // 0 = none
  bool lossy = false;                  // requests are carried out that nobody knows of

 private:
  std::atomic<int> port_ = 0;
  std::chrono::steady_clock::time_point end_;
};

class Endpoint {
 public:
  Endpoint(Scene& scene, std::string who) : scene_(scene), who_(std::move(who)) {}

  struct Answer {
    HttpResponse response;
    bool sure = true;  // nothing of this request can have been carried out before this answer
  };
  // Nothing when the history is too late, which is noted.
  std::optional<Answer> insist(const std::string& method, const std::string& target,
                               const std::string& body);
  // One try; nothing when there was no answer that decides.
  std::optional<HttpResponse> attempt(const std::string& method, const std::string& target,
                                      const std::string& body);
  Scene& scene() { return scene_; }

 private:
  Scene& scene_;
  std::string who_;
  int port_ = 0;
  std::unique_ptr<HttpClient> client_;
};

}  // namespace gnomon::robustness
