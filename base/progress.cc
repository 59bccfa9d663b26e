#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

namespace gnomon {

// Before this much time has passed, a rate says nothing.
constexpr double kSecondsToJudge = 1.0;

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  auto total = static_cast<int64_t>(std::llround(seconds));
  if (total >= 3600) return fmt::format("{}h {:02}m", total / 3600, total % 3600 / 60);
  if (total >= 60) return fmt::format("{}m {:02}s", total / 60, total % 60);
  return fmt::format("{}s", total);
}

Progress::Progress(std::string label, int64_t total, std::FILE* out)
    : label_(std::move(label)),
      total_(total),
      out_(out),
      terminal_(::isatty(::fileno(out)) == 1),
      start_(Clock::now()),
      last_draw_(start_ - std::chrono::hours(1)) {}

Progress::~Progress() {
  if (!finished_ && drawn_ && terminal_) std::fputc('\n', out_);
}

void Progress::update(int64_t done, const std::string& note) {
  if (first_done_ < 0) {
    first_done_ = done > 0 ? done - 1 : 0;  // a resumed run does not start at zero
  }
  done_ = done;
  note_ = note;
  auto interval = terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(2000);
  if (Clock::now() - last_draw_ >= interval) draw(false);
}

void Progress::finish(const std::string& note) {
  if (finished_) return;
  if (!note.empty()) note_ = note;
  draw(true);
  finished_ = true;
}

void Progress::message(const std::string& text) {
  if (terminal_ && drawn_) std::fputs("\r\033[K", out_);
  std::fprintf(out_, "%s\n", text.c_str());
  if (terminal_ && drawn_) draw(false);
  std::fflush(out_);
}

void Progress::draw(bool last) {
  last_draw_ = Clock::now();
  drawn_ = true;
  double elapsed = std::chrono::duration<double>(last_draw_ - start_).count();
  std::string line = label_;
  if (total_ > 0) {
    double share = std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0);
    if (terminal_) {
      constexpr int kWidth = 24;
      int filled = static_cast<int>(share * kWidth);
      line += " [" + std::string(filled, '=') + std::string(kWidth - filled, ' ') + "]";
    }
    line += fmt::format(" {}/{} {:3.0f}%", done_, total_, 100 * share);
  } else {
    line += fmt::format(" {}", done_);
  }
  if (!note_.empty()) line += "  " + note_;
  int64_t worked = done_ - std::max<int64_t>(first_done_, 0);
  if (last) {
    line += fmt::format("  took {}", format_duration(elapsed));
  } else if (total_ > 0 && worked > 0 && elapsed >= kSecondsToJudge) {
    double left = elapsed / static_cast<double>(worked) * static_cast<double>(total_ - done_);
    line += fmt::format("  {} left", format_duration(left));
  }
  if (terminal_) {
    std::fprintf(out_, "\r\033[K%s%s", line.c_str(), last ? "\n" : "");
  } else {
    std::fprintf(out_, "%s\n", line.c_str());
  }
  std::fflush(out_);
}

}  // namespace gnomon
