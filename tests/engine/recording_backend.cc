#include "tests/engine/recording_backend.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/operands.h"

namespace gnomon::test {

void RecordingBackend::quantize(GemmOperand<bf16>& operand, int64_t rows, int64_t columns,
                                const Rounding& rounding, unsigned wanted, CastCounts* counts) {
  ForwardingBackend::quantize(operand, rows, columns, rounding, wanted, counts);
  const bf16* copy = cpu::copy_of(operand);
  Vector source, values;
  for (bf16 value : operand.data) source.push_back(static_cast<double>(to_float(value)));
  int wrong = 0;
  if (rounding.whole_tensor()) {
    const float scale = operand.scalars[kScale];
    for (size_t i = 0; i < source.size(); ++i) {
      const double scaled = static_cast<double>(static_cast<float>(source[i]) * scale);
      const double found = static_cast<double>(to_float(copy[i]));
      wrong += found != round_to_format(rounding.quantizer.format, scaled);
      values.push_back(found / static_cast<double>(scale));
    }
    quantised_.push_back({rounding.quantizer.format,
                          static_cast<double>(scale),
                          {},
                          std::move(source),
                          std::move(values)});
  } else {
    const Quantizer& quantizer = rounding.quantizer;
    const TileGrid grid = tile_grid(quantizer, rows, columns);
    const Vector expected =
        quantise_tiles(quantizer, rounding.log2_shift, source, static_cast<int>(columns));
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        const int64_t tile = row / grid.tile.rows * grid.columns + column / grid.tile.columns;
        const double scale =
            rounding.keeps_scales ? static_cast<double>(operand.tile_scales.data()[tile]) : 1.0;
        const int64_t at = row * columns + column;
        values.push_back(static_cast<double>(to_float(copy[at])) / scale);
        wrong += values.back() != expected[static_cast<size_t>(at)];
      }
    }
    quantised_.push_back({quantizer.format, 0, quantizer, std::move(source), std::move(values)});
  }
  EXPECT_EQ(wrong, 0) << "values quantised wrongly, of " << operand.data.size();
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
