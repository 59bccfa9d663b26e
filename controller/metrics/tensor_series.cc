#include "controller/metrics/tensor_series.h"

#include <algorithm>
#include <set>

namespace gnomon {

TensorFamilies::TensorFamilies(SeriesRegistry& registry)
    : underflow(
          registry.gauge("gnomon_run_tensor_underflow_ratio",
                         "share of nonzero elements that rounding made zero; the worst tensors")),
      saturation(
          registry.gauge("gnomon_run_tensor_saturation_ratio",
                         "share of elements beyond the format's largest; the worst tensors")),
      sqnr(registry.gauge("gnomon_run_tensor_sqnr_decibels",
                          "signal to quantisation noise; the worst tensors")),
      kurtosis(registry.gauge(
          "gnomon_run_tensor_kurtosis",
          "kurtosis, 3 for a normal distribution; the tensors with the heaviest tails")),
      step(registry.gauge("gnomon_run_statistics_step", "newest step with tensor statistics")) {}

TensorSeries::~TensorSeries() { clear(); }

void TensorSeries::clear() {
  for (auto& [family, metric] : shown_) family->remove(metric);
  shown_.clear();
}

void TensorSeries::take(const StatisticsReport& report) {
  const std::pair<int64_t, int64_t> at{report.attempt, report.step};
  if (at < newest_) return;
  if (at > newest_) {
    roundings_.clear();
    tensors_.clear();
  }
  newest_ = at;
  for (const StatisticsRow& row : report.rows) {
    if (row.recipe.empty()) {
      tensors_.push_back({{{"run", label_}, {"site", row.site}, {"tensor", row.tensor}},
                          {row.number(StatisticsNumber::kKurtosis)}});
    }
    if (!row.in_use) continue;
    roundings_.push_back(
        {{{"run", label_}, {"site", row.site}, {"tensor", row.tensor}, {"gemm", row.gemm}},
         {row.number(StatisticsNumber::kUnderflow), row.number(StatisticsNumber::kSaturation),
          row.number(StatisticsNumber::kSqnrDb)}});
  }
  clear();
  prometheus::Gauge& step = families_.step.add({{"run", label_}});
  step.Set(static_cast<double>(report.step));
  shown_.emplace_back(&families_.step, &step);
  show(families_.underflow, roundings_, 0, true);
  show(families_.saturation, roundings_, 1, true);
  show(families_.sqnr, roundings_, 2, false);
  show(families_.kurtosis, tensors_, 0, true);
}

void TensorSeries::show(GaugeFamily& family, const std::vector<Known>& known, size_t number,
                        bool largest) {
  std::vector<const Known*> worst;
  for (const Known& it : known) {
    if (it.numbers[number]) worst.push_back(&it);
  }
  const size_t count = std::min(kWorstMax, worst.size());
  std::partial_sort(worst.begin(), worst.begin() + static_cast<std::ptrdiff_t>(count), worst.end(),
                    [&](const Known* a, const Known* b) {
                      if (*a->numbers[number] == *b->numbers[number]) return a->labels < b->labels;
                      return (*a->numbers[number] > *b->numbers[number]) == largest;
                    });
  std::set<Labels> shown;  // whoever reports may say one thing twice
  for (size_t i = 0; i < count; ++i) {
    if (!shown.insert(worst[i]->labels).second) continue;
    prometheus::Gauge& metric = family.add(worst[i]->labels);
    metric.Set(*worst[i]->numbers[number]);
    shown_.emplace_back(&family, &metric);
  }
}

}  // namespace gnomon
