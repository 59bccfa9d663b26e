#include "cli/conformance/checks.h"

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <cstdio>
#include <thread>

#include "cli/json_output.h"
#include "cli/printing.h"

namespace gnomon::cli {
namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(100);

const char* word(Checks::Outcome outcome) {
  switch (outcome) {
    case Checks::Outcome::kPassed:
      return "passed";
    case Checks::Outcome::kNoted:
      return "noted";
    case Checks::Outcome::kFailed:
      break;
  }
  return "failed";
}

}  // namespace

void Checks::passed(const std::string& name, const std::string& sentence) {
  add({name, Outcome::kPassed, sentence});
}

void Checks::noted(const std::string& name, const std::string& sentence) {
  add({name, Outcome::kNoted, sentence});
}

void Checks::failed(const std::string& name, const std::string& sentence) {
  add({name, Outcome::kFailed, sentence});
}

bool Checks::expect(bool holds, const std::string& name, const std::string& right,
                    const std::string& wrong) {
  holds ? passed(name, right) : failed(name, wrong);
  return holds;
}

void Checks::print(const std::string& sentence) const {
  if (quiet_) return;
  print_line("        {}\n", sentence);
  std::fflush(stdout);
}

bool Checks::wait_until(const std::string& what, double seconds,
                        const std::function<bool()>& seen) const {
  using Clock = std::chrono::steady_clock;
  print("waiting " + what);
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < until) {
    if (seen()) return true;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return false;
}

void Checks::add(Check check) {
  if (!quiet_) {
    print_line("{:<7} {}: {}\n", word(check.outcome), check.name, check.sentence);
    std::fflush(stdout);
  }
  checks_.push_back(std::move(check));
}

bool Checks::any_failed() const {
  return std::ranges::any_of(checks_,
                             [](const Check& check) { return check.outcome == Outcome::kFailed; });
}

std::string Checks::json() const {
  boost::json::array all;
  for (const Check& check : checks_) {
    all.push_back(
        {{"name", check.name}, {"outcome", word(check.outcome)}, {"sentence", check.sentence}});
  }
  return pretty_json(boost::json::object{{"passed", !any_failed()}, {"checks", std::move(all)}});
}

}  // namespace gnomon::cli
