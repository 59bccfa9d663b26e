#include "tests/robustness/api_fuzz.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>

#include "base/errors.h"
#include "tests/robustness/api_player.h"

namespace gnomon::robustness {
namespace {

using Clock = std::chrono::steady_clock;
using Calls = std::vector<int64_t>;

constexpr double kShrinkSeconds = 60;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Failure {
  std::string rule;
  std::string what;
  size_t played = 0;               // calls, with the one that failed
  std::vector<std::string> lines;  // as ApiPlayer::lines
};

class ApiFuzz {
 public:
  explicit ApiFuzz(const ApiFuzzOptions& options) : options_(options) {}

  int64_t run();

 private:
  std::optional<Failure> play(uint64_t seed, const Calls& calls, const std::string& keep = {});
  Calls shrink(uint64_t seed, Calls calls, Failure& failure);
  void play_seed(uint64_t seed);

  const ApiFuzzOptions& options_;
  Clock::time_point start_ = Clock::now();
  int64_t failed_ = 0;
  std::map<std::string, int64_t> counts_;
};

std::optional<Failure> ApiFuzz::play(uint64_t seed, const Calls& calls, const std::string& keep) {
  ApiPlayer player(seed);
  Failure failure;
  std::optional<Failure> found;
  try {
    for (const int64_t call : calls) {
      ++failure.played;
      player.play(call);
    }
    player.finish();
  } catch (const BrokenRule& rule) {
    failure.rule = rule.rule();
    failure.what = rule.what();
    found = failure;
  } catch (const std::exception& error) {
    failure.rule = "every answer can be read";
    failure.what = error.what();
    found = failure;
  }
  if (found) found->lines = player.lines();
  for (const auto& [what, times] : player.counts()) counts_[what] += times;
  if (found && !keep.empty()) {
    std::filesystem::create_directories(keep);
    std::filesystem::copy(player.daemon().folder(), keep,
                          std::filesystem::copy_options::recursive |
                              std::filesystem::copy_options::overwrite_existing);
  }
  return found;
}

// Leaves out calls, in ever smaller pieces, as long as the same rule is broken.
Calls ApiFuzz::shrink(uint64_t seed, Calls calls, Failure& failure) {
  const auto start = Clock::now();
  for (size_t piece = std::max<size_t>(calls.size() / 2, 1); piece > 0; piece /= 2) {
    for (size_t at = 0; at < calls.size();) {
      if (seconds_since(start) > kShrinkSeconds) return calls;
      Calls fewer = calls;
      const auto from = fewer.begin() + static_cast<std::ptrdiff_t>(at);
      fewer.erase(from, from + static_cast<std::ptrdiff_t>(std::min(piece, calls.size() - at)));
      const std::optional<Failure> again = play(seed, fewer);
      if (again && again->rule == failure.rule) {
        failure = *again;
        fewer.resize(again->played);
        calls = std::move(fewer);
      } else {
        at += piece;
      }
    }
  }
  return calls;
}

void ApiFuzz::play_seed(uint64_t seed) {
  Calls calls(static_cast<size_t>(options_.calls));
  std::iota(calls.begin(), calls.end(), 0);
  if (!options_.only.empty()) calls = parse_calls(options_.only);
  const std::string keep =
      options_.keep.empty() ? "" : fmt::format("{}/api-{}", options_.keep, seed);
  std::optional<Failure> failure = play(seed, calls, keep);
  if (!failure) return;
  ++failed_;
  fmt::print("FAILED: sequence {} after {} calls, {:.1f} s after the beginning: {}:\n  {}\n", seed,
             failure->played, seconds_since(start_), failure->rule, failure->what);
  std::fflush(stdout);
  calls.resize(failure->played);
  if (options_.only.empty()) calls = shrink(seed, calls, *failure);
  fmt::print("  with {} calls alone:\n", calls.size());
  for (const std::string& line : failure->lines) fmt::print("    {}\n", line);
  fmt::print("  {}\n  repeat: robustness --api --seed {} --calls {}\n", failure->what, seed,
             calls_as_text(calls));
  if (!keep.empty()) fmt::print("  what gnomond left is kept as {}\n", keep);
  std::fflush(stdout);
}

int64_t ApiFuzz::run() {
  const uint64_t first = options_.seed.value_or(std::random_device()());
  fmt::print("sequences from {}\n", first);
  std::fflush(stdout);
  int64_t played = 0;
  double told = 0;
  const auto enough = [&] {
    if (options_.stop_at_failure && failed_ > 0) return true;
    if (!options_.only.empty()) return played > 0;
    return options_.sequences > 0 ? played >= options_.sequences
                                  : seconds_since(start_) >= options_.seconds;
  };
  while (!enough()) {
    play_seed(first + static_cast<uint64_t>(played));
    ++played;
    if (seconds_since(start_) > told + 10) {
      told = seconds_since(start_);
      fmt::print("{:.0f} s: {} sequences, {} failed\n", told, played, failed_);
      std::fflush(stdout);
    }
  }
  fmt::print("{} sequences in {:.1f} s, {} failed\n", played, seconds_since(start_), failed_);
  for (const auto& [what, times] : counts_) fmt::print("  {}: {}\n", what, times);
  return failed_;
}

int64_t number_in(std::string_view text) {
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) {
    throw ConfigError("", 0, "calls", std::string(text), "numbers and ranges of them, as 0-12,40");
  }
  return number;
}

}  // namespace

std::vector<int64_t> parse_calls(const std::string& text) {
  std::vector<int64_t> calls;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    const size_t dash = one.find('-');
    const int64_t from = number_in(one.substr(0, dash));
    const int64_t to = dash == std::string_view::npos ? from : number_in(one.substr(dash + 1));
    for (int64_t call = from; call <= to; ++call) calls.push_back(call);
  }
  return calls;
}

std::string calls_as_text(const std::vector<int64_t>& calls) {
  std::string text;
  for (size_t i = 0; i < calls.size();) {
    size_t last = i;
    while (last + 1 < calls.size() && calls[last + 1] == calls[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += last == i ? fmt::format("{}", calls[i]) : fmt::format("{}-{}", calls[i], calls[last]);
    i = last + 1;
  }
  return text;
}

int64_t fuzz_api(const ApiFuzzOptions& options) { return ApiFuzz(options).run(); }

}  // namespace gnomon::robustness
