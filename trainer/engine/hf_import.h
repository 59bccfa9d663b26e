// Weights to start from: a directory as transformers saves a Llama or Qwen2, config.json beside
// safetensors in F32, BF16 or F16, in one file or in shards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>

#include "storage/safetensors_directory.h"
#include "trainer/engine/model_config.h"
#include "trainer/engine/parameters.h"

namespace gnomon {

class HfCheckpoint {
 public:
  // Reads config.json and all headers and compares them; weights are only mapped, not read, but
  // for a tied model's lm_head.weight, which must be the embedding once more. The buffers
  // rotary_emb.inv_freq of old files are passed over. Throws SystemError, ConfigError
  // (ModelConfig::from_hf_json) and FormatError, naming the file: a tensor missing, unknown, of
  // another shape or dtype; SafetensorsDirectory's own.
  explicit HfCheckpoint(const std::filesystem::path& directory);

  const ModelConfig& config() const { return config_; }
  const ParameterLayout& layout() const { return layout_; }
  const SafetensorsDirectory& weights() const { return weights_; }
  const std::set<std::string>& dtypes() const { return dtypes_; }  // of the parameters

  // All parameters as FP32, numbered by layout(); what lies between them stays as it is. `values`
  // has layout().elements(). Throws FormatError at a value that is not finite.
  void read(std::span<float> values) const;

 private:
  void check_tensors();
  const SafetensorsDirectory::Tensor& require(const Parameter& parameter) const;
  bool may_be_passed_over(const std::string& name,
                          const SafetensorsDirectory::Tensor& tensor) const;

  ModelConfig config_;
  ParameterLayout layout_;
  SafetensorsDirectory weights_;
  std::set<std::string> dtypes_;
};

// The same for an engine whose model is `expected`: reads `directory` and throws ConfigError when
// its config.json has another one.
void read_hf_weights(const std::filesystem::path& directory, const ModelConfig& expected,
                     std::span<float> values);

// The value of an IEEE 754 half, which FP32 holds exactly.
float half_to_float(uint16_t bits);

}  // namespace gnomon
