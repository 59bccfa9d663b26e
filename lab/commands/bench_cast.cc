// `gnomon bench cast`: arrays to codes and back against a plain copy of as many bytes, in turn.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <functional>
#include <memory>

#include "base/philox.h"
#include "base/stopwatch.h"
#include "base/version.h"
#include "cli/json_output.h"
#include "cli/table.h"
#include "kernels/backend.h"
#include "kernels/cpu/cast.h"
#include "kernels/tensor.h"
#include "lab/commands/commands.h"

namespace gnomon::cli {
namespace {

struct CastBenchOptions {
  std::vector<std::string> formats = {"e4m3", "e5m2"};
  int64_t elements = int64_t{1} << 26;
  int threads = 2;
  int rounds = 9;
  bool json = false;
};

double seconds_of(const std::function<void()>& work) {
  Stopwatch watch;
  work();
  return watch.read().seconds;
}

// memcpy of `bytes` bytes, divided among the threads as the casts are.
void copy(int threads, const std::byte* from, int64_t bytes, std::byte* to) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int thread = 0; thread < threads; ++thread) {
    int64_t begin = bytes / 64 * thread / threads * 64;
    int64_t end = thread + 1 == threads ? bytes : bytes / 64 * (thread + 1) / threads * 64;
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  }
}

// Memory that both sides share: the copy moves the same bytes, half of them read and half written.
class CastBench {
 public:
  explicit CastBench(const CastBenchOptions& options) : options_(options) {
    auto n = static_cast<size_t>(options.elements);
    for (bool committed : {false, true}) {
      fp32_ = arena_.allocate<float>(options.elements);
      bf16_ = arena_.allocate<bf16>(options.elements);
      codes_ = arena_.allocate<uint8_t>(options.elements);
      from_ = arena_.allocate<std::byte>(options.elements * kBytesCopiedMax);
      to_ = arena_.allocate<std::byte>(options.elements * kBytesCopiedMax);
      if (!committed) arena_.commit();
    }
    for (size_t i = 0; i < n; ++i) {
      fp32_[i] = 8 * philox_uniform(philox(1, 0, i & 0xFFFF)[0]) - 4;
      bf16_[i] = to_bf16(fp32_[i]);
    }
    std::ranges::fill(from_, std::byte{1});
    std::ranges::fill(to_, std::byte{0});
  }

  boost::json::array run() {
    boost::json::array results;
    for (const std::string& name : options_.formats) {
      Format format = format_from_name(name);
      const int t = options_.threads;
      results.push_back(measure(name, "bf16 to codes", 3, [this, t, format] {
        cpu::cast_to_codes<bf16>(t, format, bf16_, 1.5f, codes_);
      }));
      results.push_back(measure(name, "codes to bf16", 3, [this, t, format] {
        cpu::cast_from_codes<bf16>(t, format, codes_, 0.75f, bf16_);
      }));
      results.push_back(measure(name, "fp32 to codes", 5, [this, t, format] {
        cpu::cast_to_codes<float>(t, format, fp32_, 1.5f, codes_);
      }));
      results.push_back(measure(name, "codes to fp32", 5, [this, t, format] {
        cpu::cast_from_codes<float>(t, format, codes_, 0.75f, fp32_);
      }));
    }
    return results;
  }

 private:
  static constexpr int64_t kBytesCopiedMax = 3;  // per element: half of an FP32 and a code, up

  boost::json::object measure(const std::string& format, const char* cast,
                              int64_t bytes_per_element, const std::function<void()>& work) {
    const int64_t bytes = options_.elements * bytes_per_element;
    std::vector<double> cast_seconds, copy_seconds;
    for (int round = -1; round < options_.rounds; ++round) {  // the first is not counted
      double cast_time = seconds_of(work);
      double copy_time =
          seconds_of([&] { copy(options_.threads, from_.data(), bytes / 2, to_.data()); });
      if (round < 0) continue;
      cast_seconds.push_back(cast_time);
      copy_seconds.push_back(copy_time);
    }
    auto rate = [bytes](const std::vector<double>& seconds) {
      return static_cast<double>(bytes) / median(seconds);
    };
    return {{"format", format},
            {"cast", cast},
            {"bytes_read_and_written", bytes},
            {"bytes_per_second", rate(cast_seconds)},
            {"copy_bytes_per_second", rate(copy_seconds)},
            {"over_copy", rate(cast_seconds) / rate(copy_seconds)}};
  }

  const CastBenchOptions& options_;
  Arena arena_{"cast"};
  std::span<float> fp32_;
  std::span<bf16> bf16_;
  std::span<uint8_t> codes_;
  std::span<std::byte> from_, to_;
};

void print_in_words(const boost::json::array& casts) {
  Table table({"format", "cast", ">GB/s", ">copy GB/s", ">over copy"});
  for (const boost::json::value& cast : casts) {
    auto number = [&cast](const char* key) { return cast.at(key).to_number<double>(); };
    table.add({cast.at("format").as_string().c_str(), cast.at("cast").as_string().c_str(),
               fmt::format("{:.2f}", number("bytes_per_second") / 1e9),
               fmt::format("{:.2f}", number("copy_bytes_per_second") / 1e9),
               fmt::format("{:.2f}", number("over_copy"))});
  }
  fmt::print("{}", table.text());
}

void bench_cast(const CastBenchOptions& options) {
  boost::json::array casts = CastBench(options).run();
  if (!options.json) {
    print_in_words(casts);
    return;
  }
  double least = 1e30;
  for (const boost::json::value& cast : casts) {
    least = std::min(least, cast.at("over_copy").to_number<double>());
  }
  fmt::print(
      "{}",
      pretty_json(boost::json::object{
          {"bench", "cast"},
          {"casts", std::move(casts)},
          {"least_over_copy", least},
          {"elements", options.elements},
          {"rounds", options.rounds},
          {"threads", options.threads},
          {"machine", make_cpu_backend<bf16>(options.threads)->device()},
          {"build", fmt::format("{} ({}, {}, {})", kVersion, kRevision, kBuildType, kCompiler)}}));
}

}  // namespace

void add_bench_cast_command(Command& bench) {
  auto options = std::make_shared<CastBenchOptions>();
  Command* cast = bench.add_subcommand(
      "cast", "Arrays to codes and back, in bytes read and written, beside a plain copy");
  cast->add_option("--format", options->formats, "One or more of e4m3, e5m2, e3m2, e2m3, e2m1")
      ->check(one_of({"e4m3", "e5m2", "e3m2", "e2m3", "e2m1"}))
      ->capture_default_str();
  cast->add_option("--elements", options->elements, "Length of the arrays")
      ->check(in_range(int64_t{1} << 12, int64_t{1} << 32))
      ->capture_default_str();
  cast->add_option("--threads", options->threads, "Threads of cast and copy")
      ->check(in_range(1, 1024))
      ->capture_default_str();
  cast->add_option("--rounds", options->rounds, "Casts and copies in turn; medians are reported")
      ->check(in_range(1, 1000))
      ->capture_default_str();
  cast->add_flag("--json", options->json, "Print JSON");
  cast->footer("Example:\n  gnomon bench cast --format e4m3 --json");
  cast->callback([options] { bench_cast(*options); });
}

}  // namespace gnomon::cli
