// A small checkpoint's content that differs from step to step.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "storage/checkpoint_store.h"

namespace gnomon {

class SampleContent {
 public:
  explicit SampleContent(int64_t step, size_t count = 64) : weights_(count), moments_(count) {
    for (size_t i = 0; i < count; ++i) {
      weights_[i] = static_cast<uint16_t>(static_cast<size_t>(step) * 31 + i);
      moments_[i] = static_cast<float>(step) + static_cast<float>(i);
    }
    auto extent = static_cast<int64_t>(count);
    content_.config_json = "{\"model_type\": \"llama\"}\n";
    content_.trainer_state_json = fmt::format("{{\"step\": {}}}\n", step);
    content_.model = {{"model.norm.weight", "BF16", {extent}, weights_.data()}};
    content_.optimizer = {{"exp_avg.model.norm.weight", "F32", {extent}, moments_.data()}};
  }
  SampleContent(const SampleContent&) = delete;
  SampleContent& operator=(const SampleContent&) = delete;

  operator const CheckpointContent&() const { return content_; }
  const std::vector<uint16_t>& weights() const { return weights_; }

 private:
  std::vector<uint16_t> weights_;
  std::vector<float> moments_;
  CheckpointContent content_;
};

}  // namespace gnomon
