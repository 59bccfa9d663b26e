// What a conformance run has looked at, said line by line as it goes.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace gnomon::cli {

class Checks {
 public:
  enum class Outcome { kPassed, kNoted, kFailed };
  struct Check {
    std::string name;  // what was looked at, in a word or two
    Outcome outcome = Outcome::kPassed;
    std::string sentence;  // what was seen, and what would be right
  };

  explicit Checks(bool quiet) : quiet_(quiet) {}

  void passed(const std::string& name, const std::string& sentence);
  // Nothing is wrong, and something that would help is missing.
  void noted(const std::string& name, const std::string& sentence);
  void failed(const std::string& name, const std::string& sentence);
  // `right` when `holds`, else `wrong` as a failure.
  bool expect(bool holds, const std::string& name, const std::string& right,
              const std::string& wrong);
  // A line between the checks: what is waited for.
  void print(const std::string& sentence) const;

  // Says that it waits for `what`, and looks again and again; false when that took so long.
  bool wait_until(const std::string& what, double seconds, const std::function<bool()>& seen) const;

  const std::vector<Check>& all() const { return checks_; }
  bool any_failed() const;
  std::string json() const;

 private:
  void add(Check check);

  bool quiet_;
  std::vector<Check> checks_;
};

}  // namespace gnomon::cli
