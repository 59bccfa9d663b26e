#include "controller/metrics/run_numbers.h"

#include <algorithm>
#include <tuple>

namespace gnomon {
namespace {

constexpr size_t kLayersMax = 200;

bool same_place(const TensorNumber& a, const TensorNumber& b) {
  return std::tie(a.site, a.tensor, a.gemm) == std::tie(b.site, b.tensor, b.gemm);
}

// Adds `value` where there is one. The same place may be reported twice: the worst value stays.
void add_worst(std::vector<TensorNumber>& worst, const StatisticsRow& row,
               std::optional<double> value, bool largest) {
  if (!value) return;
  const TensorNumber number{row.site, row.tensor, row.gemm, *value};
  const auto is_worse = [&](const TensorNumber& a, const TensorNumber& b) {
    if (a.value != b.value) return (a.value > b.value) == largest;
    return std::tie(a.gemm, a.site, a.tensor) < std::tie(b.gemm, b.site, b.tensor);
  };
  const auto known = std::ranges::find_if(
      worst, [&](const TensorNumber& each) { return same_place(each, number); });
  if (known != worst.end()) {
    if (!is_worse(number, *known)) return;
    worst.erase(known);
  }
  worst.insert(std::ranges::upper_bound(worst, number, is_worse), number);
  if (worst.size() > TensorNumbers::kWorstMax) worst.pop_back();
}

}  // namespace

void count_step(RunNumbers& numbers, const StepNumbers& step) {
  numbers.tokens += static_cast<double>(step.tokens);
  numbers.step_seconds.observe(step.step_seconds);
}

void record_step(RunNumbers& numbers, const StepNumbers& step, double reported_at) {
  count_step(numbers, step);
  numbers.newest_step = StepReport{step, reported_at};
}

void record_window(RunNumbers& numbers, const std::optional<decide::CloseWindow>& window) {
  numbers.newest_window = window;
  // D = 100 gap / L16, so L16 follows from the gap and D.
  if (window && window->gap && window->offset_loss && *window->gap != 0) {
    numbers.offset_ratio = *window->offset_loss * (*window->d_percent / 100) / *window->gap;
  }
}

void record_layers(RunNumbers& numbers, const std::vector<std::pair<std::string, double>>& shares) {
  for (const auto& [layer, share] : shares) {
    if (numbers.layers.size() >= kLayersMax && !numbers.layers.contains(layer)) return;
    numbers.layers[layer] = share;
  }
}

void record_statistics(RunNumbers& numbers, const StatisticsReport& report) {
  TensorNumbers& tensors = numbers.tensors;
  const std::pair newest(tensors.attempt, tensors.step);
  const std::pair reported(report.attempt, report.step);
  if (reported < newest) return;
  if (reported > newest) tensors = {report.attempt, report.step, {}, {}, {}, {}};
  for (const StatisticsRow& row : report.rows) {
    if (row.recipe.empty()) {
      add_worst(tensors.kurtosis, row, row.number(StatisticsNumber::kKurtosis), true);
    }
    if (!row.in_use) continue;
    add_worst(tensors.underflow, row, row.number(StatisticsNumber::kUnderflow), true);
    add_worst(tensors.saturation, row, row.number(StatisticsNumber::kSaturation), true);
    add_worst(tensors.sqnr, row, row.number(StatisticsNumber::kSqnrDb), false);
  }
}

void record_device(RunNumbers& numbers, const std::string& host, DeviceHealth health) {
  std::optional<DeviceNumbers>& device = numbers.device;
  if (device && device->host == host && device->health.device == health.device) {
    if (!health.ecc_corrected) health.ecc_corrected = device->health.ecc_corrected;
    if (!health.ecc_uncorrected) health.ecc_uncorrected = device->health.ecc_uncorrected;
  }
  device = {host, std::move(health)};
}

}  // namespace gnomon
