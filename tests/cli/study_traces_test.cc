// Ten traces of the detection study, judged again: what its page says follows from its traces.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

#include "base/files.h"
#include "controller/decide/gap_settings.h"
#include "controller/decide/policy.h"
#include "lab/rehearsal/findings.h"
#include "tests/support/child_process.h"

namespace gnomon::test {
namespace {

namespace json = boost::json;

// Integers and words are the same, floating-point numbers up to what other compilers make of a sum.
void expect_same(const json::value& found, const json::value& expected, const std::string& where) {
  if (found.is_object() && expected.is_object()) {
    EXPECT_EQ(found.get_object().size(), expected.get_object().size()) << where;
    for (const auto& [key, value] : expected.get_object()) {
      const json::value* other = found.get_object().if_contains(key);
      ASSERT_NE(other, nullptr) << where << "." << key << " is missing";
      expect_same(*other, value, where + "." + std::string(key));
    }
  } else if (found.is_array() && expected.is_array()) {
    ASSERT_EQ(found.get_array().size(), expected.get_array().size()) << where;
    for (size_t i = 0; i < expected.get_array().size(); ++i) {
      expect_same(found.get_array()[i], expected.get_array()[i], where + "." + std::to_string(i));
    }
  } else if (found.is_double() || expected.is_double()) {
    ASSERT_TRUE(found.is_number() && expected.is_number()) << where << " is " << found;
    const double value = expected.to_number<double>();
    EXPECT_NEAR(found.to_number<double>(), value, 1e-9 * std::abs(value)) << where;
  } else {
    EXPECT_EQ(json::serialize(found), json::serialize(expected)) << where;
  }
}

// tests/cli/ten_traces.json is what `gnomon bench detect --traces FOLDER --json` says of these ten.
TEST(StudyTracesTest, TenOfThemAreJudgedAsOnRecord) {
  const std::string prefix = "block-128.";
  std::vector<std::string> names;
  for (const char* run : {"none.seed1.bf16", "none.seed1.bf16-1", "none.seed1.bf16-2",
                          "none.seed1.fp8", "none.seed1.fp8-1", "none.seed1.fp8-2",
                          "none.seed1.observed", "gradient_underflow=-13.seed1.observed",
                          "scale_shift=+8.seed1.observed", "scale_shift=+8.seed1.enforced"}) {
    names.push_back(prefix + run + ".jsonl");
  }
  const TemporaryDirectory folder;
  std::vector<std::string> unpack = {
      "/usr/bin/env", "tar",
      "xJf",          GNOMON_SOURCE "/docs/studies/detection/traces.tar.xz",
      "-C",           folder.path().string()};
  unpack.insert(unpack.end(), names.begin(), names.end());
  ASSERT_EQ(run_to_end(unpack).status, 0);
  std::ranges::sort(names);
  std::vector<rehearsal::Trace> traces;
  for (const std::string& name : names) traces.push_back(rehearsal::Trace::read(folder / name));
  expect_same(rehearsal::findings(traces, decide::gap_settings(decide::Policy())),
              json::parse(read_file(GNOMON_SOURCE "/tests/cli/ten_traces.json")), "findings");
}

}  // namespace
}  // namespace gnomon::test
