#include "trainer/engine/hf_import.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "base/errors.h"
#include "base/files.h"

namespace gnomon {
namespace {

constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbeddingName = "model.embed_tokens.weight";
const std::set<std::string> kDtypes = {"F32", "BF16", "F16"};

ModelConfig read_config(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "config.json";
  return ModelConfig::from_hf_json(read_file(file), file.string());
}

std::string described(const TensorView& tensor) {
  return fmt::format("tensor \"{}\" as {} [{}]", tensor.name, tensor.dtype,
                     fmt::join(tensor.shape, ", "));
}

template <typename Word, typename Convert>
void convert(const void* from, std::span<float> to, Convert value_of) {
  const auto* bytes = static_cast<const std::byte*>(from);
  for (size_t i = 0; i < to.size(); ++i) {
    Word word;
    std::memcpy(&word, bytes + i * sizeof word, sizeof word);
    to[i] = value_of(word);
  }
}

void read_tensor(const TensorView& tensor, std::span<float> to) {
  if (tensor.dtype == "F32") {
    std::memcpy(to.data(), tensor.data, to.size_bytes());
  } else if (tensor.dtype == "BF16") {
    convert<uint16_t>(tensor.data, to,
                      [](uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); });
  } else {
    convert<uint16_t>(tensor.data, to, half_to_float);
  }
}

}  // namespace

float half_to_float(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t widened = exponent == 0x1f ? 0xffu : exponent + 127 - 15;
  return std::bit_cast<float>(sign | widened << 23 | fraction << 13);
}

HfCheckpoint::HfCheckpoint(const std::filesystem::path& directory)
    : config_(read_config(directory)), layout_(config_), weights_(directory) {
  check_tensors();
}

void HfCheckpoint::check_tensors() {
  std::set<std::string> known;
  for (const Parameter& parameter : layout_.all()) {
    dtypes_.insert(require(parameter).view->dtype);
    known.insert(parameter.name);
  }
  for (const auto& [name, tensor] : weights_.tensors()) {
    if (!known.contains(name) && !may_be_passed_over(name, tensor))
      throw FormatError(tensor.file, 0, described(*tensor.view),
                        "only tensors that the model of config.json has");
  }
}

const SafetensorsDirectory::Tensor& HfCheckpoint::require(const Parameter& parameter) const {
  const std::string shape = fmt::format("[{}]", fmt::join(parameter.shape, ", "));
  const SafetensorsDirectory::Tensor* tensor = weights_.find(parameter.name);
  if (tensor == nullptr)
    throw FormatError(weights_.path().string(), 0, fmt::format("no tensor \"{}\"", parameter.name),
                      fmt::format("one of shape {}, as config.json has it", shape));
  if (tensor->view->shape != parameter.shape)
    throw FormatError(tensor->file, 0, described(*tensor->view),
                      fmt::format("shape {}, as config.json has it", shape));
  if (!kDtypes.contains(tensor->view->dtype))
    throw FormatError(tensor->file, 0, described(*tensor->view),
                      fmt::format("one of {}", fmt::join(kDtypes, ", ")));
  return *tensor;
}

bool HfCheckpoint::may_be_passed_over(const std::string& name,
                                      const SafetensorsDirectory::Tensor& tensor) const {
  if (name.starts_with("model.") && name.ends_with("rotary_emb.inv_freq")) return true;
  if (name != kHead) return false;
  const TensorView& embedding = *weights_.find(kEmbeddingName)->view;
  if (tensor.view->dtype != embedding.dtype || tensor.view->shape != embedding.shape ||
      std::memcmp(tensor.view->data, embedding.data, static_cast<size_t>(embedding.bytes())) != 0)
    throw FormatError(tensor.file, 0, fmt::format("{} of its own", described(*tensor.view)),
                      fmt::format("none, or the values of {}: config.json has "
                                  "tie_word_embeddings = true",
                                  kEmbeddingName));
  return true;
}

void HfCheckpoint::read(std::span<float> values) const {
  GNOMON_ASSERT(static_cast<int64_t>(values.size()) == layout_.elements());
  for (const Parameter& parameter : layout_.all()) {
    const SafetensorsDirectory::Tensor& tensor = *weights_.find(parameter.name);
    std::span<float> home =
        values.subspan(static_cast<size_t>(parameter.offset), static_cast<size_t>(parameter.size));
    read_tensor(*tensor.view, home);
    for (size_t i = 0; i < home.size(); ++i) {
      if (!std::isfinite(home[i]))
        throw FormatError(tensor.file, 0,
                          fmt::format("{} at element {} of \"{}\"", home[i], i, parameter.name),
                          "a finite number");
    }
  }
}

void read_hf_weights(const std::filesystem::path& directory, const ModelConfig& expected,
                     std::span<float> values) {
  const HfCheckpoint checkpoint(directory);
  if (checkpoint.config() != expected)
    throw ConfigError((directory / "config.json").string(), 0, "model",
                      checkpoint.config().to_hf_json(),
                      "the engine's own model: " + expected.to_hf_json());
  checkpoint.read(values);
}

}  // namespace gnomon
