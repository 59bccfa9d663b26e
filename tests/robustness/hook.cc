#include "tests/robustness/hook.h"

#include <fmt/format.h>

namespace gnomon::robustness {
namespace {

using std::chrono::milliseconds;

constexpr auto kPoll = milliseconds(5);
// gnomond waits so long for an answer.
constexpr double kTimeoutSeconds = 0.15;
constexpr auto kTooLate = milliseconds(200);

std::string header_of(const std::string& request, const std::string& name) {
  const size_t head = request.find("\r\n\r\n");
  const std::string line = "\r\n" + name + ": ";
  const size_t at = request.find(line);
  if (at >= head) return {};
  const size_t begin = at + line.size();
  return request.substr(begin, request.find("\r\n", begin) - begin);
}

std::string answer_of(int status) {
  return fmt::format("HTTP/1.1 {} As drawn\r\nContent-Length: 2\r\n\r\nok", status);
}

}  // namespace

Hook::Hook(Record& record, uint64_t seed, int number)
    : record_(record),
      seed_(seed + static_cast<uint64_t>(number) * 1000003),
      name_(fmt::format("hook-{}", number)),
      minimum_severity_(number == 1 ? "info" : "warning"),
      secret_(fmt::format("secret {} of {}", number, seed)),
      listener_(test::listen_on_loopback(port_)),
      thread_([this] { accept_all(); }) {}

Hook::~Hook() {
  leaving_ = true;
  thread_.join();
}

// No message is given up, whatever the clock does.
std::string Hook::configuration(const std::string& secret_file) const {
  return fmt::format(
      "[[notify]]\nname = \"{}\"\nurl = \"http://127.0.0.1:{}/hook\"\nminimum_severity = \"{}\"\n"
      "secret_file = \"{}\"\ntimeout_seconds = {}\nretry_first_seconds = 0.01\n"
      "retry_longest_seconds = 0.05\ngive_up_hours = 10000\n",
      name_, port_, minimum_severity_, secret_file, kTimeoutSeconds);
}

std::vector<Arrival> Hook::arrivals() const {
  const std::lock_guard lock(mutex_);
  return arrivals_;
}

size_t Hook::note(Arrival arrival) {
  const std::lock_guard lock(mutex_);
  arrival.came = ++clock_;
  arrivals_.push_back(std::move(arrival));
  return arrivals_.size() - 1;
}

void Hook::note_end(size_t arrival) {
  const std::lock_guard lock(mutex_);
  arrivals_[arrival].ended = ++clock_;
}

void Hook::accept_all() {
  uint64_t number = 0;
  std::vector<std::thread> sessions;
  while (!leaving_) {
    FileDescriptor sender = test::accept_one(listener_.get(), kPoll);
    if (sender.get() < 0) continue;
    sessions.emplace_back([this, number = ++number, sender = std::move(sender)]() mutable {
      serve(std::move(sender), number);
    });
  }
  for (std::thread& session : sessions) session.join();
}

void Hook::serve(FileDescriptor sender, uint64_t number) {
  Draw draw(seed_, 7000 + number);
  std::string text;
  bool ended = false;
  while (!ended && !leaving_) {
    text += test::receive(sender.get(), kPoll, ended);
    const std::optional<size_t> size = test::message_size(text);
    if (!size) continue;
    const std::string request = text.substr(0, *size);
    text.erase(0, *size);
    if (!answer(sender.get(), request, draw)) return;
  }
}

bool Hook::answer(int sender, const std::string& request, Draw& draw) {
  const size_t arrival =
      note({header_of(request, "X-Gnomon-Delivery"), header_of(request, "X-Gnomon-Signature"),
            request.substr(request.find("\r\n\r\n") + 4), 0, 0, test::has_left(sender)});
  record_.count("messages came");
  const double chance = calm_ ? 1 : static_cast<double>(draw.between(0, 99)) / 100;
  if (chance < 0.05) {
    record_.count("messages without an answer");
    return false;
  }
  if (chance < 0.08) {
    record_.count("messages with half an answer");
    test::send_all(sender, "HTTP/1.1 20");
    return false;
  }
  if (chance < 0.15) {
    record_.count("messages answered 503");
    return test::send_all(sender, answer_of(503));
  }
  if (chance < 0.17) {
    record_.count("messages answered too late");
    std::this_thread::sleep_for(kTooLate);
  } else if (chance < 0.3) {
    std::this_thread::sleep_for(milliseconds(draw.between(1, 60)));
  }
  // From here on it need not come again, if anybody hears the answer.
  if (!test::has_left(sender)) note_end(arrival);
  const bool refused = chance >= 0.3 && chance < 0.32;
  record_.count(refused ? "messages refused" : "messages taken");
  return test::send_all(sender, answer_of(refused ? 410 : 200));
}

}  // namespace gnomon::robustness
