#include "tests/engine/recording_backend.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gnomon::test {

QuantizeCounts RecordingBackend::quantize(std::span<const bf16> x, Format format, float scale,
                                          std::span<bf16> y) {
  QuantizeCounts counts = backend_->quantize(x, format, scale, y);
  bool e4m3 = format == Format::kE4m3;
  EXPECT_TRUE(e4m3 || format == Format::kE5m2);
  QuantisedTensor record{format, static_cast<double>(scale), {}, {}};
  int wrong = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    double scaled = static_cast<double>(to_float(x[i]) * scale);
    double expected = round_to_grid(scaled, e4m3 ? 3 : 2, e4m3 ? -6 : -14, e4m3 ? 448.0 : 57344.0);
    double found = static_cast<double>(to_float(y[i]));
    wrong += found != expected;
    record.source.push_back(static_cast<double>(to_float(x[i])));
    record.values.push_back(found / record.scale);
  }
  EXPECT_EQ(wrong, 0) << "values quantised wrongly, of " << x.size();
  quantised_.push_back(std::move(record));
  return counts;
}

const QuantisedTensor* RecordingBackend::find(const Vector& x, Format format, double scale) const {
  for (const QuantisedTensor& record : quantised_) {
    if (record.format != format || record.source.size() != x.size()) continue;
    if (std::abs(record.scale / scale - 1.0) > 0.02) continue;
    double difference = 0;
    double size = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      difference += (record.source[i] - x[i]) * (record.source[i] - x[i]);
      size += x[i] * x[i];
    }
    if (difference <= 0.05 * 0.05 * size) return &record;
  }
  return nullptr;
}

}  // namespace gnomon::test
