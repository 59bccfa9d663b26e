#include "tests/engine/recording_backend.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gnomon::test {

QuantizeCounts RecordingBackend::quantize(std::span<const bf16> x, Format format, float scale,
                                          std::span<bf16> y) {
  QuantizeCounts counts = backend_->quantize(x, format, scale, y);
  QuantisedTensor record{format, static_cast<double>(scale), {}, {}, {}};
  int wrong = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    double scaled = static_cast<double>(to_float(x[i]) * scale);
    double found = static_cast<double>(to_float(y[i]));
    wrong += found != round_to_format(format, scaled);
    record.source.push_back(static_cast<double>(to_float(x[i])));
    record.values.push_back(found / record.scale);
  }
  EXPECT_EQ(wrong, 0) << "values quantised wrongly, of " << x.size();
  quantised_.push_back(std::move(record));
  return counts;
}

void RecordingBackend::quantize_tiles(const Quantizer& quantizer,
                                      const TileQuantiseOptions& options, std::span<const bf16> x,
                                      int64_t rows, int64_t columns, std::span<bf16> y,
                                      std::span<float> scales) {
  backend_->quantize_tiles(quantizer, options, x, rows, columns, y, scales);
  const TileGrid grid = tile_grid(quantizer, rows, columns);
  QuantisedTensor record{quantizer.format, 0, quantizer, {}, {}};
  for (bf16 value : x) record.source.push_back(static_cast<double>(to_float(value)));
  Vector expected =
      quantise_tiles(quantizer, options.log2_shift, record.source, static_cast<int>(columns));
  int wrong = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const auto at = static_cast<size_t>(row * columns + column);
      const int64_t tile = row / grid.tile.rows * grid.columns + column / grid.tile.columns;
      const double scale =
          options.dequantise ? 1.0 : static_cast<double>(scales[static_cast<size_t>(tile)]);
      record.values.push_back(static_cast<double>(to_float(y[at])) / scale);
      wrong += record.values.back() != expected[at];
    }
  }
  EXPECT_EQ(wrong, 0) << "values quantised wrongly, of " << x.size();
  quantised_.push_back(std::move(record));
}

namespace {

// Within 5%, as vectors.
bool near(const Vector& source, const Vector& x) {
  if (source.size() != x.size()) return false;
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += (source[i] - x[i]) * (source[i] - x[i]);
    size += x[i] * x[i];
  }
  return difference <= 0.05 * 0.05 * size;
}

}  // namespace

const QuantisedTensor* RecordingBackend::find(const Vector& x, const Quantizer& quantizer,
                                              double scale) const {
  const bool whole_tensor = quantizer.tile == TileShape{};
  for (const QuantisedTensor& record : quantised_) {
    if (record.format != quantizer.format || whole_tensor != (record.scale > 0)) continue;
    if (whole_tensor && std::abs(record.scale / scale - 1.0) > 0.02) continue;
    if (!whole_tensor && record.quantizer != quantizer) continue;
    if (near(record.source, x)) return &record;
  }
  return nullptr;
}

}  // namespace gnomon::test
