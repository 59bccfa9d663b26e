#include "trainer/console.h"

#include <spdlog/sinks/base_sink.h>

#include <cstdio>

namespace gnomon {

class Console::Sink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit Sink(Console& console) : console_(console) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t formatted;
    formatter_->format(message, formatted);
    std::string line(formatted.data(), formatted.size());
    if (!line.empty() && line.back() == '\n') line.pop_back();
    std::lock_guard lock(console_.mutex_);
    if (console_.progress_) {
      console_.progress_->message(line);
    } else {
      std::fprintf(stderr, "%s\n", line.c_str());
    }
  }
  void flush_() override { std::fflush(stderr); }

 private:
  Console& console_;
};

Console::Console(const std::string& program, const std::string& level) {
  logger_ = std::make_shared<spdlog::logger>(program, std::make_shared<Sink>(*this));
  logger_->set_pattern("%Y-%m-%d %H:%M:%S.%eZ %^%l%$ %v", spdlog::pattern_time_type::utc);
  logger_->set_level(spdlog::level::from_str(level));
}

void Console::start_progress(const std::string& label, int64_t total) {
  std::lock_guard lock(mutex_);
  progress_ = std::make_unique<Progress>(label, total);
}

void Console::update(int64_t done, const std::string& note) {
  std::lock_guard lock(mutex_);
  if (progress_) progress_->update(done, note);
}

void Console::finish_progress(const std::string& note) {
  std::lock_guard lock(mutex_);
  if (progress_) progress_->finish(note);
  progress_.reset();
}

}  // namespace gnomon
