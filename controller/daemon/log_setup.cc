#include "controller/daemon/log_setup.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <string_view>

#include "base/printable.h"

namespace gnomon {
namespace {

std::string_view view_of(spdlog::string_view_t text) { return {text.data(), text.size()}; }

// What may stand between the quotes of a JSON string, and of logfmt's, in UTF-8 where it was.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out += c;
    }
  }
  return printable_json(out);
}

// A formatter of lines with members, whose `pattern` has places for time, level and text.
class MemberFormatter final : public spdlog::formatter {
 public:
  explicit MemberFormatter(bool json) : json_(json) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const auto time = std::chrono::time_point_cast<std::chrono::milliseconds>(message.time);
    const auto seconds = std::chrono::time_point_cast<std::chrono::seconds>(time);
    const std::string stamp = fmt::format(
        "{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)),
        (time - seconds).count());
    const std::string_view level = view_of(spdlog::level::to_string_view(message.level));
    const std::string text = escaped(view_of(message.payload));
    if (json_) {
      fmt::format_to(std::back_inserter(out), R"({{"ts":"{}","level":"{}","msg":"{}"}})", stamp,
                     level, text);
    } else {
      fmt::format_to(std::back_inserter(out), R"(ts={} level={} msg="{}")", stamp, level, text);
    }
    out.push_back('\n');
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<MemberFormatter>(json_);
  }

 private:
  bool json_;
};

// Lines for people: the time in UTC, as in everything else that a daemon writes. A message is one
// line, whatever text of others is in it.
class TextFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const std::string text = printable(view_of(message.payload));
    spdlog::details::log_msg shown = message;
    shown.payload = text;
    pattern_.format(shown, out);
    message.color_range_start = shown.color_range_start;
    message.color_range_end = shown.color_range_end;
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<TextFormatter>();
  }

 private:
  spdlog::pattern_formatter pattern_{"[%Y-%m-%d %H:%M:%S.%eZ] [%n] [%^%l%$] %v",
                                     spdlog::pattern_time_type::utc};
};

}  // namespace

std::unique_ptr<spdlog::formatter> make_log_formatter(const std::string& format) {
  if (format == "text") return std::make_unique<TextFormatter>();
  return std::make_unique<MemberFormatter>(format == "json");
}

void start_log(const LogConfig& config) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("gnomond"));
  spdlog::set_formatter(make_log_formatter(config.format));
  set_log_level(config.level);
}

void set_log_level(const std::string& level) { spdlog::set_level(spdlog::level::from_str(level)); }

}  // namespace gnomon
