#include "storage/checkpoint_store.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <set>
#include <tuple>

#include "base/files.h"
#include "base/hash.h"
#include "storage/checkpoint_manifest.h"
#include "storage/hashed_file.h"
#include "storage/staging_directory.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kManifestBytesMax = int64_t{1} << 20;

std::string attempt_name(int64_t attempt) { return fmt::format("attempt-{:04}", attempt); }
std::string step_name(int64_t step) { return fmt::format("step-{:08}", step); }

// The number in a name that `format` would write, or -1.
int64_t number_in(const std::string& name, std::string_view prefix,
                  std::string (*format)(int64_t)) {
  if (!name.starts_with(prefix)) return -1;
  int64_t number = -1;
  auto [end, error] =
      std::from_chars(name.data() + prefix.size(), name.data() + name.size(), number);
  bool whole = error == std::errc() && end == name.data() + name.size() && number >= 0;
  return whole && format(number) == name ? number : -1;
}

int64_t attempt_of(const fs::path& path) {
  return number_in(path.filename().string(), "attempt-", attempt_name);
}
int64_t step_of(const fs::path& path) {
  return number_in(path.filename().string(), "step-", step_name);
}

std::tuple<int64_t, int64_t> order(const CheckpointInfo& info) { return {info.attempt, info.step}; }

// Size of a regular file, or -1. Throws SystemError where it cannot be known now.
int64_t regular_file_bytes(const fs::path& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) throw SystemError("look at", path.string(), errno);
    return -1;
  }
  return S_ISREG(status.st_mode) ? status.st_size : -1;
}

// Throws SystemError where it cannot be known now.
bool is_directory_now(const fs::path& path) {
  std::error_code error;
  const bool is = fs::is_directory(path, error);
  if (error && error != std::errc::no_such_file_or_directory &&
      error != std::errc::not_a_directory) {
    throw SystemError("look at", path.string(), error.value());
  }
  return is;
}

std::string hash_of(const std::string& text) {
  Hash128 hash;
  hash.update(text.data(), text.size());
  return hash.hex();
}

std::string read_manifest(const fs::path& directory) {
  const fs::path path = directory / kManifestFile;
  int64_t bytes = regular_file_bytes(path);
  if (bytes < 0) throw Error(fmt::format("{} is missing", kManifestFile));
  if (bytes > kManifestBytesMax)
    throw FormatError(path.string(), kManifestBytesMax, fmt::format("a file of {} bytes", bytes),
                      fmt::format("at most {}", kManifestBytesMax));
  return read_file(path);
}

// What `manifest` promises without reading the files: they are all there with their sizes, and no
// others.
void check_sizes(const fs::path& directory, const CheckpointManifest& manifest) {
  std::set<std::string> expected = {kManifestFile};
  for (const ManifestEntry& file : manifest.files) {
    expected.insert(file.name);
    int64_t bytes = regular_file_bytes(directory / file.name);
    if (bytes < 0) throw Error(fmt::format("{} is missing", file.name));
    if (bytes != file.bytes)
      throw Error(fmt::format("{} has {} bytes, expected {}", file.name, bytes, file.bytes));
  }
  for (const fs::path& path : list_directory(directory))
    if (!expected.contains(path.filename().string()))
      throw Error(
          fmt::format("{} is there and not in {}", path.filename().string(), kManifestFile));
}

// The whole check of one directory. Throws Error with the reason.
CheckpointInfo verify_directory(const fs::path& directory) {
  std::string text = read_manifest(directory);
  CheckpointManifest manifest = parse_manifest(text, directory / kManifestFile);
  int64_t named_step = step_of(directory);
  int64_t named_attempt = attempt_of(directory.parent_path());
  if (named_step >= 0 && named_step != manifest.step)
    throw Error(fmt::format("{} is of step {}", kManifestFile, manifest.step));
  if (named_step >= 0 && named_attempt >= 0 && named_attempt != manifest.attempt)
    throw Error(fmt::format("{} is of attempt {}", kManifestFile, manifest.attempt));
  check_sizes(directory, manifest);
  for (const ManifestEntry& file : manifest.files) {
    std::string hash = digest_file(directory / file.name).xxh3_128;
    if (hash != file.xxh3_128)
      throw Error(fmt::format("{} has the hash {}, expected {}", file.name, hash, file.xxh3_128));
  }
  return {directory, manifest.attempt, manifest.step,
          manifest.bytes() + static_cast<int64_t>(text.size()), hash_of(text)};
}

bool looks_whole(const fs::path& directory) {
  try {
    check_sizes(directory, parse_manifest(read_manifest(directory), directory / kManifestFile));
    return true;
  } catch (const Error&) {
    return false;
  }
}

CheckpointInfo unverified_info(const fs::path& directory, int64_t attempt, int64_t step) {
  CheckpointInfo info{directory, attempt, step, 0, {}};
  try {
    std::string text = read_manifest(directory);
    info.manifest_hash = hash_of(text);
    info.bytes =
        parse_manifest(text, directory / kManifestFile).bytes() + static_cast<int64_t>(text.size());
  } catch (const Error&) {
    // A damaged manifest is verify_checkpoint's to explain; here it has no size to tell.
  }
  return info;
}

std::vector<CheckpointInfo> list_checkpoints(const fs::path& root) {
  std::vector<CheckpointInfo> found;
  for (const fs::path& attempt : list_directory(root)) {
    if (attempt_of(attempt) < 0) continue;
    for (const fs::path& step : list_directory(attempt)) {
      if (step_of(step) < 0 || regular_file_bytes(step / kManifestFile) < 0) continue;
      found.push_back(unverified_info(step, attempt_of(attempt), step_of(step)));
    }
  }
  std::sort(found.begin(), found.end(),
            [](const CheckpointInfo& a, const CheckpointInfo& b) { return order(a) < order(b); });
  return found;
}

// The newest of `candidates` (ascending) that verifies.
std::optional<CheckpointInfo> newest_verified(const std::vector<CheckpointInfo>& candidates,
                                              std::vector<std::string>* skipped) {
  for (auto info = candidates.rbegin(); info != candidates.rend(); ++info) {
    try {
      return verify_directory(info->path);
    } catch (const Error& error) {
      if (skipped != nullptr)
        skipped->push_back(fmt::format("{}: {}", info->path.string(), error.what()));
    }
  }
  return std::nullopt;
}

// The newest intact checkpoint before `directory` in the store it stands in.
std::optional<fs::path> previous_intact(const fs::path& directory) {
  int64_t attempt = attempt_of(directory.parent_path());
  int64_t step = step_of(directory);
  if (attempt < 0 || step < 0) return std::nullopt;
  std::vector<CheckpointInfo> before = list_checkpoints(directory.parent_path().parent_path());
  std::erase_if(
      before, [&](const CheckpointInfo& info) { return order(info) >= std::tuple(attempt, step); });
  std::optional<CheckpointInfo> info = newest_verified(before, nullptr);
  return info ? std::optional(info->path) : std::nullopt;
}

ManifestEntry write_text(const fs::path& directory, const char* name, const std::string& text) {
  HashedFileWriter file(directory / name);
  file.append(text.data(), text.size());
  FileDigest digest = file.finish();
  return {name, digest.bytes, digest.xxh3_128};
}

ManifestEntry write_tensors(const fs::path& directory, const char* name,
                            const std::vector<TensorView>& tensors) {
  const fs::path path = directory / name;
  std::string hash = write_safetensors(path, tensors, {{"format", "pt"}});
  return {name, regular_file_bytes(path), hash};
}

void create_directories_synced(const fs::path& path) {
  if (path.empty() || is_directory_now(path)) return;
  create_directories_synced(path.parent_path());
  if (::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST)
    throw SystemError("create", path.string(), errno);
  sync_path(path.has_parent_path() ? path.parent_path() : ".");
}

fs::path plain(const fs::path& path) {
  fs::path normal = fs::absolute(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

}  // namespace

std::pair<int64_t, int64_t> checkpoint_id(const fs::path& directory) {
  const fs::path path = directory.has_filename() ? directory : directory.parent_path();
  return {attempt_of(path.parent_path()), step_of(path)};
}

CheckpointError::CheckpointError(const std::string& message, std::optional<fs::path> previous)
    : Error(message), previous_(std::move(previous)) {}

CheckpointStore::CheckpointStore(const fs::path& root) : root_(plain(root)) {
  create_directories_synced(root_);
  for (const fs::path& attempt : list_directory(root_))
    if (attempt_of(attempt) >= 0) remove_abandoned_staging(attempt);
}

fs::path CheckpointStore::path_of(int64_t attempt, int64_t step) const {
  GNOMON_ASSERT(attempt >= 0 && step >= 0);
  return root_ / attempt_name(attempt) / step_name(step);
}

CheckpointInfo CheckpointStore::write(int64_t attempt, int64_t step,
                                      const CheckpointContent& content) {
  const fs::path target = path_of(attempt, step);
  create_directories_synced(target.parent_path());
  StagingDirectory staging(target.parent_path(), step_name(step));
  CheckpointManifest manifest{attempt, step, {}};
  manifest.files.push_back(write_text(staging.path(), kConfigFile, content.config_json));
  manifest.files.push_back(
      write_text(staging.path(), kTrainerStateFile, content.trainer_state_json));
  manifest.files.push_back(write_tensors(staging.path(), kModelFile, content.model));
  manifest.files.push_back(write_tensors(staging.path(), kOptimizerFile, content.optimizer));
  std::string text = to_json(manifest);
  write_text(staging.path(), kManifestFile, text);
  staging.commit(target);
  return {target, attempt, step, manifest.bytes() + static_cast<int64_t>(text.size()),
          hash_of(text)};
}

std::vector<CheckpointInfo> CheckpointStore::list() const { return list_checkpoints(root_); }

std::optional<CheckpointInfo> CheckpointStore::newest_intact(
    std::vector<std::string>* skipped) const {
  return newest_verified(list(), skipped);
}

std::vector<CheckpointInfo> CheckpointStore::retain(
    int keep_last, const std::function<bool(const CheckpointInfo&)>& needed) {
  std::vector<CheckpointInfo> checkpoints = list();
  std::vector<CheckpointInfo> deleted;
  int kept = 0;
  for (auto info = checkpoints.rbegin(); info != checkpoints.rend(); ++info) {
    if (kept < keep_last) {
      // A visibly broken one is kept for whoever wants to know why, but counts for nothing.
      if (looks_whole(info->path)) ++kept;
      continue;
    }
    if (needed && needed(*info)) continue;
    StagingDirectory::claim(info->path);
    deleted.push_back(*info);
  }
  std::reverse(deleted.begin(), deleted.end());
  return deleted;
}

CheckpointInfo verify_checkpoint(const fs::path& directory) {
  const fs::path path = plain(directory);
  try {
    if (!is_directory_now(path)) throw Error("there is no such directory");
    return verify_directory(path);
  } catch (const Error& error) {
    // What the system does not let us read now may be whole.
    const auto* refused = dynamic_cast<const SystemError*>(&error);
    if (refused && refused->error_number() != ENOENT && refused->error_number() != EIO) throw;
    std::optional<fs::path> previous;
    try {
      previous = previous_intact(path);
    } catch (const Error&) {
      // The store itself cannot be listed; the first reason says enough.
    }
    throw CheckpointError(
        fmt::format("{} is no intact checkpoint: {}; {}", path.string(), error.what(),
                    previous ? "the newest intact one before it is " + previous->string()
                             : "there is no intact one before it"),
        previous);
  }
}

}  // namespace gnomon
