#include "storage/checkpoint_manifest.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.h"
#include "base/hash.h"
#include "storage/strict_json.h"

namespace gnomon {
namespace {

namespace json = boost::json;

constexpr char kManifestFormat[] = "gnomon-checkpoint";
constexpr int64_t kManifestVersion = 1;

ManifestEntry parse_entry(const json::value& value, const JsonSource& source) {
  if (!value.is_object())
    throw FormatError(source.file, 0, "a file that is no object", "an object");
  const json::object& object = value.get_object();
  ManifestEntry entry{json_string(object, "name", source), json_count(object, "bytes", source),
                      json_string(object, "xxh3_128", source)};
  if (entry.name.empty() || entry.name[0] == '.' || entry.name.find('/') != std::string::npos ||
      entry.name == kManifestFile)
    throw FormatError(source.file, 0, fmt::format("the file name \"{}\"", entry.name),
                      "the plain name of a checkpoint's file");
  return entry;
}

void check_files(const CheckpointManifest& manifest, const JsonSource& source) {
  int64_t sum = 0;
  for (const ManifestEntry& file : manifest.files)
    if (__builtin_add_overflow(sum, file.bytes, &sum))
      throw FormatError(source.file, 0, "files of more than 2^63 bytes", "the files' real sizes");
  for (const char* required : {kConfigFile, kModelFile, kOptimizerFile, kTrainerStateFile}) {
    auto named = [&](const ManifestEntry& entry) { return entry.name == required; };
    if (std::count_if(manifest.files.begin(), manifest.files.end(), named) != 1)
      throw FormatError(source.file, 0, "a list of files that is not a checkpoint's",
                        fmt::format("{} once", required));
  }
}

}  // namespace

int64_t CheckpointManifest::bytes() const {
  int64_t sum = 0;
  for (const ManifestEntry& file : files) sum += file.bytes;
  return sum;
}

std::string to_json(const CheckpointManifest& manifest) {
  std::string text = fmt::format(
      "{{\n  \"format\": \"{}\",\n  \"version\": {},\n  \"attempt\": {},\n  \"step\": {},\n"
      "  \"files\": [",
      kManifestFormat, kManifestVersion, manifest.attempt, manifest.step);
  const char* separator = "\n";
  for (const ManifestEntry& file : manifest.files) {
    text += fmt::format("{}    {{\"name\": {}, \"bytes\": {}, \"xxh3_128\": {}}}", separator,
                        json::serialize(json::string(file.name)), file.bytes,
                        json::serialize(json::string(file.xxh3_128)));
    separator = ",\n";
  }
  text += "\n  ],\n";
  Hash128 checksum;
  checksum.update(text.data(), text.size());
  return text + fmt::format("  \"checksum\": \"{}\"\n}}\n", checksum.hex());
}

CheckpointManifest parse_manifest(const std::string& text, const std::filesystem::path& path) {
  const JsonSource source{path.string(), 0};
  json::value value = parse_strict_json(text, source, "a checkpoint's manifest");
  if (!value.is_object()) throw FormatError(source.file, 0, "no JSON object", "an object");
  const json::object& object = value.get_object();
  std::string format = json_string(object, "format", source);
  int64_t version = json_count(object, "version", source);
  if (format != kManifestFormat || version != kManifestVersion)
    throw FormatError(source.file, 0, fmt::format("format \"{}\" version {}", format, version),
                      fmt::format("\"{}\" version {}", kManifestFormat, kManifestVersion));
  CheckpointManifest manifest;
  manifest.attempt = json_count(object, "attempt", source);
  manifest.step = json_count(object, "step", source);
  for (const json::value& file : json_array(object, "files", source))
    manifest.files.push_back(parse_entry(file, source));
  check_files(manifest, source);
  std::string expected = to_json(manifest);
  if (text != expected) {
    auto differs = std::mismatch(text.begin(), text.end(), expected.begin(), expected.end());
    throw FormatError(source.file, differs.first - text.begin(),
                      "a manifest that its own checksum contradicts", "an undamaged manifest");
  }
  return manifest;
}

}  // namespace gnomon
