// Lion's kernel against numpy (tests/golden/make_optimizer_goldens.py), and its rule in FP64.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace gnomon {
namespace {

// Rows by their name.
std::map<std::string, std::vector<std::vector<float>>> golden_steps() {
  std::ifstream file(std::string(GNOMON_GOLDEN_DIR) + "/lion_steps.txt");
  std::map<std::string, std::vector<std::vector<float>>> rows;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    std::vector<float>& row = rows[name].emplace_back();
    for (float value = 0; words >> value;) row.push_back(value);
  }
  return rows;
}

TEST(Lion, TakesTheStepsOfNumpy) {
  const auto rows = golden_steps();
  const std::vector<float>& how = rows.at("step").at(0);
  ASSERT_EQ(how.size(), 6u);
  ASSERT_EQ(rows.at("gradient").size(), 12u);
  for (const int threads : {1, 3}) {
    auto backend = make_cpu_backend(threads);
    std::vector<float> master = rows.at("start").at(0), m(master.size());
    std::vector<bf16> weight(master.size());
    for (const std::vector<float>& gradient : rows.at("gradient")) {
      ASSERT_EQ(gradient.size(), master.size());
      const UpdateStep step{.learning_rate = how[0],
                            .beta1 = how[1],
                            .beta2 = how[2],
                            .eps = 0,
                            .weight_decay = how[3],
                            .bias_correction1 = 1,
                            .bias_correction2 = 1,
                            .gradient_scale = how[4],
                            .decayed = static_cast<int64_t>(how[5]),
                            .optimizer = OptimizerKind::kLion};
      backend->update(step, gradient, {m, MomentSpan()}, master, weight);
    }
    for (size_t i = 0; i < master.size(); ++i) {
      EXPECT_NEAR(master[i], rows.at("master").at(0).at(i), 2e-6) << i;
      EXPECT_NEAR(m[i], rows.at("exp_avg").at(0).at(i), 1e-7) << i;
      EXPECT_EQ(weight[i].bits, to_bf16(master[i]).bits) << i;
    }
  }
}

TEST(Lion, RuleHasTheSlopeOfAClippedSign) {
  const UpdateOf<double> of{.learning_rate = 1e-2,
                            .beta1 = 0.9,
                            .beta2 = 0.99,
                            .eps = 0,
                            .weight_decay = 0,
                            .bias_correction1 = 1,
                            .bias_correction2 = 1,
                            .gradient_scale = 1};
  const Lion<double> rule(of);
  double m = 0.5, none = 0;
  EXPECT_EQ(rule.step(-5, m, none), -1e-2) << "0.9 · 0.5 − 0.1 · 5 is below 0";
  EXPECT_NEAR(m, 0.99 * 0.5 - 0.01 * 5, 1e-15);
  double nan = std::nan(""), zero = 0;
  EXPECT_TRUE(std::isnan(rule.step(1, nan, none)));
  EXPECT_EQ(rule.step(0, zero, none), 0);
  // Evenly spread about 0, elements change sign as often as the slope says.
  constexpr int kElements = 100'000;
  constexpr double kError = 0.02, kLeast = 0.05;
  double changed = 0, expected = 0;
  for (int i = 0; i < kElements; ++i) {
    const double before = 2.0 * i / kElements - 1;
    double once = before, again = before;
    changed += rule.step(kError, once, none) - rule.step(0, again, none);
    expected += kError * rule.slope(0, before, 0, kLeast);
  }
  EXPECT_GT(changed, 0);
  EXPECT_NEAR(expected / changed, 1, 1e-2);
}

}  // namespace
}  // namespace gnomon
