#include "trainer/engine/hf_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "base/files.h"
#include "numerics/formats.h"
#include "storage/checkpoint_store.h"
#include "storage/staging_directory.h"
#include "trainer/engine/hf_import.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOptimizer = "optimizer.safetensors";

std::vector<TensorView> views_of(const ParameterLayout& layout, const char* dtype,
                                 const std::byte* data) {
  const int64_t element = dtype_bytes(dtype);
  std::vector<TensorView> views;
  for (const Parameter& parameter : layout.all()) {
    views.push_back({parameter.name, dtype, parameter.shape, data + parameter.offset * element});
  }
  return views;
}

std::vector<TensorView> stored_views(const HfCheckpoint& source) {
  std::vector<TensorView> views;
  for (const Parameter& parameter : source.layout().all()) {
    views.push_back(*source.weights().find(parameter.name)->view);
  }
  return views;
}

std::vector<TensorView> master_views(const HfCheckpoint& source, const SafetensorsFile& optimizer) {
  std::vector<TensorView> views;
  for (const Parameter& parameter : source.layout().all()) {
    views.push_back(optimizer.require("master." + parameter.name, "F32", parameter.shape));
    views.back().name = parameter.name;
  }
  return views;
}

// What config.json calls the dtype of `views`.
std::string dtype_name(const std::vector<TensorView>& views) {
  const std::string& first = views.front().dtype;
  return first == "F32" ? "float32" : first == "F16" ? "float16" : "bfloat16";
}

std::vector<std::string> write(const HfCheckpoint& source, const std::vector<TensorView>& views,
                               const fs::path& out, int64_t shard_bytes_max) {
  const fs::path target = fs::absolute(out).lexically_normal();
  const fs::path named = target.has_filename() ? target : target.parent_path();
  StagingDirectory staging(named.parent_path(), named.filename().string());
  std::vector<std::string> files =
      write_safetensors_directory(staging.path(), views, shard_bytes_max);
  write_file_atomically(staging.path() / "config.json",
                        source.config().to_hf_json(dtype_name(views)));
  files.push_back("config.json");
  staging.commit(named);
  return files;
}

}  // namespace

std::vector<std::string> export_hf(const fs::path& source, const fs::path& out,
                                   std::optional<Compute> dtype, int64_t shard_bytes_max) {
  if (fs::exists(out))
    throw ConfigError("", 0, "--out", out.string(), "a path where nothing is yet");
  if (fs::exists(source / "manifest.json")) verify_checkpoint(source);
  const HfCheckpoint checkpoint(source);
  if (!dtype) return write(checkpoint, stored_views(checkpoint), out, shard_bytes_max);
  if (*dtype == Compute::kFp32 && fs::exists(source / kOptimizer)) {
    const SafetensorsFile optimizer(source / kOptimizer);
    return write(checkpoint, master_views(checkpoint, optimizer), out, shard_bytes_max);
  }
  std::vector<float> values(static_cast<size_t>(checkpoint.layout().elements()), 0.0f);
  checkpoint.read(values);
  if (*dtype == Compute::kFp32) {
    const auto* data = reinterpret_cast<const std::byte*>(values.data());
    return write(checkpoint, views_of(checkpoint.layout(), "F32", data), out, shard_bytes_max);
  }
  std::vector<bf16> rounded(values.size());
  std::ranges::transform(values, rounded.begin(), [](float value) { return to_bf16(value); });
  const auto* data = reinterpret_cast<const std::byte*>(rounded.data());
  return write(checkpoint, views_of(checkpoint.layout(), "BF16", data), out, shard_bytes_max);
}

}  // namespace gnomon
