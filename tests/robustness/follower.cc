#include "tests/robustness/follower.h"

#include <fmt/format.h>

#include <sstream>
#include <thread>

#include "tests/support/sockets.h"

namespace gnomon::robustness {

void Follower::handle_block(const std::string& block) {
  std::istringstream lines(block);
  int64_t id = 0;
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("id: ")) id = std::stoll(line.substr(4));
    if (line.starts_with("event: ") || line.starts_with("data: ")) text += line + "\n";
  }
  if (text.empty()) return;  // a sign of life, or `retry`
  if (id != last_ + 1) {
    scene_.record.violation(
        fmt::format("event {} of the stream followed event {}", id, last_.load()));
  }
  events_[id] = text;
  last_ = id;
}

void Follower::follow_once(int socket) {
  const std::string start = last_ == 0 ? "/v1/events?after=0" : "/v1/events";
  const std::string resume = last_ == 0 ? "" : fmt::format("Last-Event-ID: {}\r\n", last_.load());
  if (!test::send_all(socket,
                      fmt::format("GET {} HTTP/1.0\r\nHost: localhost\r\n{}\r\n", start, resume)))
    return;
  std::string text;
  bool ended = false;
  size_t at = std::string::npos;
  while (!ended && !leaving_ && at == std::string::npos) {
    text += test::receive(socket, std::chrono::milliseconds(20), ended);
    at = text.find("\r\n\r\n");
  }
  if (at == std::string::npos) return;
  const std::string head = text.substr(0, at);
  if (head.find(" 200 ") == std::string::npos) {
    if (head.find(" 503 ") == std::string::npos) {
      scene_.record.violation(
          fmt::format("behind event {} the stream said: {}", last_.load(), text));
    }
    return;
  }
  text.erase(0, at + 4);
  while (!ended && !leaving_) {
    for (size_t end = text.find("\n\n"); end != std::string::npos; end = text.find("\n\n")) {
      handle_block(text.substr(0, end));
      text.erase(0, end + 2);
    }
    text += test::receive(socket, std::chrono::milliseconds(20), ended);
  }
}

void Follower::run() {
  while (!leaving_) {
    const FileDescriptor socket = test::connect_to(scene_.port());
    if (socket.get() >= 0) {
      scene_.record.count("streams followed");
      follow_once(socket.get());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace gnomon::robustness
