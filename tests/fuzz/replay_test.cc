// The fuzzers' kept corpus with any compiler: every file, and mutations of them that are the same
// in every run.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/philox.h"
#include "tests/fuzz/targets.h"

namespace gnomon::fuzz {
namespace {

constexpr size_t kBytesMax = 1 << 14;

std::vector<std::string> corpus_of(std::string_view target) {
  std::vector<std::filesystem::path> paths;
  auto folder = std::filesystem::path(GNOMON_FUZZ_CORPUS) / target;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  std::vector<std::string> corpus;
  for (const auto& path : paths) corpus.push_back(read_file(path));
  return corpus;
}

void run(const Target& target, const std::string& input) {
  run(target, std::span(reinterpret_cast<const uint8_t*>(input.data()), input.size()));
}

// One of: a bit flipped, a byte or eight set to something notable, a piece taken out, doubled or
// fetched from another input, the end cut off.
void mutate(std::array<uint32_t, 4> word, const std::string& other, std::string& input) {
  constexpr std::array<std::string_view, 12> kNotable = {std::string_view("\0", 1),
                                                         "\xFF",
                                                         "\x7F",
                                                         "{",
                                                         "]",
                                                         "\"",
                                                         "9",
                                                         "-",
                                                         "\n",
                                                         "=",
                                                         "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F",
                                                         "18446744073709551615"};
  if (input.empty()) input = other;
  if (input.empty()) return;
  size_t at = word[1] % input.size();
  size_t length = 1 + word[2] % std::min<size_t>(16, input.size() - at);
  switch (word[0] % 7) {
    case 0:
      input[at] = static_cast<char>(input[at] ^ (1 << (word[2] % 8)));
      break;
    case 1: {
      std::string_view notable = kNotable[word[3] % kNotable.size()];
      input.replace(at, std::min(notable.size(), input.size() - at), notable);
      break;
    }
    case 2:
      input.insert(at, kNotable[word[3] % kNotable.size()]);
      break;
    case 3:
      input.erase(at, length);
      break;
    case 4:
      input.insert(at, input.substr(at, length));
      break;
    case 5:
      if (!other.empty()) input.insert(at, other.substr(word[3] % other.size(), length));
      break;
    default:
      input.resize(at);
  }
  if (input.size() > kBytesMax) input.resize(kBytesMax);
}

class FuzzCorpus : public testing::TestWithParam<Target> {};

TEST_P(FuzzCorpus, IsReadOrRefused) {
  std::vector<std::string> corpus = corpus_of(GetParam().name);
  ASSERT_GE(corpus.size(), 3u);
  for (const std::string& input : corpus) run(GetParam(), input);
}

// What scripts/fuzz asks for: so many seconds from another seed. The input at hand is kept while it
// runs, so that it is there when it was the last one.
struct LongRun {
  double seconds = 0;  // 0: the test's own number of mutations
  uint64_t seed = 11;
  std::string kept;  // folder; empty: nowhere

  static LongRun asked() {
    LongRun run;
    if (const char* text = std::getenv("GNOMON_FUZZ_SECONDS")) run.seconds = std::atof(text);
    if (const char* text = std::getenv("GNOMON_FUZZ_SEED"))
      run.seed = std::strtoull(text, nullptr, 10);
    if (const char* text = std::getenv("GNOMON_FUZZ_FOUND")) run.kept = text;
    return run;
  }
};

void give_up(int) {
  constexpr std::string_view kWords = "fuzz: an input takes more than 30 seconds\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kWords.data(), kWords.size());
  std::abort();
}

// Gives one input after the other to the target, and says every ten seconds how many those were.
class Driver {
 public:
  Driver(const Target& target, const LongRun& asked)
      : target_(target), asked_(asked), corpus_(corpus_of(target.name)) {
    if (asked_.seconds > 0) std::signal(SIGALRM, give_up);
  }

  void drive() {
    const uint64_t last = asked_.seconds > 0 ? UINT64_MAX : target_.mutations;
    for (inputs_ = 0; inputs_ < last && (asked_.seconds == 0 || seconds() < asked_.seconds);
         ++inputs_) {
      if (asked_.seconds > 0 && seconds() >= next_line_) print_progress();
      give(input(inputs_));
    }
    if (asked_.seconds == 0) return;
    ::alarm(0);
    print_progress();
    if (!asked_.kept.empty()) std::filesystem::remove(kept());
  }

 private:
  static constexpr double kBetweenLines = 10;    // seconds
  static constexpr unsigned kInputSeconds = 30;  // a longer one ends the program

  std::string input(uint64_t number) const {
    const std::array<uint32_t, 4> choice = philox(asked_.seed, 0, number);
    std::string made = corpus_[choice[0] % corpus_.size()];
    const std::string& other = corpus_[choice[1] % corpus_.size()];
    for (uint32_t n = 0; n <= choice[2] % 4; ++n) {
      mutate(philox(asked_.seed, 1 + n, number), other, made);
    }
    return made;
  }

  void give(const std::string& made) const {
    if (!asked_.kept.empty()) std::ofstream(kept(), std::ios::binary) << made;
    if (asked_.seconds > 0) ::alarm(kInputSeconds);
    run(target_, made);
  }

  void print_progress() {
    std::printf("%s: %llu inputs in %.0f s\n", std::string(target_.name).c_str(),
                static_cast<unsigned long long>(inputs_), seconds());
    std::fflush(stdout);
    next_line_ = seconds() + kBetweenLines;
  }

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  std::filesystem::path kept() const { return std::filesystem::path(asked_.kept) / target_.name; }

  const Target& target_;
  const LongRun asked_;
  const std::vector<std::string> corpus_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double next_line_ = kBetweenLines;
  uint64_t inputs_ = 0;
};

TEST_P(FuzzCorpus, IsReadOrRefusedWithMutations) { Driver(GetParam(), LongRun::asked()).drive(); }

std::vector<Target> all_targets() {
  std::vector<Target> all;
  for (auto targets : {reader_targets(), daemon_targets(), trainer_targets()}) {
    all.insert(all.end(), targets.begin(), targets.end());
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(, FuzzCorpus, testing::ValuesIn(all_targets()),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace gnomon::fuzz
