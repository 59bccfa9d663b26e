#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <memory>
#include <string_view>
#include <tuple>

#include "base/errors.h"
#include "cli/json_output.h"
#include "cli/table.h"
#include "lab/commands/commands.h"
#include "storage/checkpoint_store.h"

namespace gnomon::cli {
namespace {

struct CheckpointOptions {
  std::string path;
  bool json = false;
};

boost::json::object to_object(const CheckpointInfo& info) {
  return {{"path", info.path.string()},
          {"attempt", info.attempt},
          {"step", info.step},
          {"bytes", info.bytes}};
}

// The number behind `prefix` in a directory's name ("step-00000120"), or -1.
int64_t number_in_name(const std::filesystem::path& path, std::string_view prefix) {
  std::string name = path.filename().string();
  if (!name.starts_with(prefix)) return -1;
  int64_t number = -1;
  const char* end = name.data() + name.size();
  auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, number);
  return error == std::errc() && stop == end ? number : -1;
}

int64_t bytes_in(const std::filesystem::path& directory) {
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

// Unlike CheckpointStore this changes nothing on disk: a trainer may be writing there.
std::vector<CheckpointInfo> list_checkpoints(const std::filesystem::path& root) {
  std::vector<CheckpointInfo> found;
  for (const auto& attempt : std::filesystem::directory_iterator(root)) {
    int64_t attempt_number = number_in_name(attempt.path(), "attempt-");
    if (attempt_number < 0 || !attempt.is_directory()) continue;
    for (const auto& step : std::filesystem::directory_iterator(attempt)) {
      int64_t step_number = number_in_name(step.path(), "step-");
      if (step_number < 0 || !std::filesystem::exists(step.path() / "manifest.json")) continue;
      found.push_back({step.path(), attempt_number, step_number, bytes_in(step.path()), {}});
    }
  }
  std::sort(found.begin(), found.end(), [](const CheckpointInfo& a, const CheckpointInfo& b) {
    return std::tie(a.attempt, a.step) < std::tie(b.attempt, b.step);
  });
  return found;
}

void require_directory(const std::string& path) {
  if (!std::filesystem::is_directory(path)) throw SystemError("read checkpoint", path, ENOENT);
}

void verify(const CheckpointOptions& options, Context& context) {
  require_directory(options.path);
  try {
    CheckpointInfo info = verify_checkpoint(options.path);
    if (options.json) {
      boost::json::object object = to_object(info);
      object["intact"] = true;
      object["manifest_hash"] = info.manifest_hash;
      fmt::print("{}", pretty_json(object));
    } else {
      fmt::print("{}: intact (attempt {}, step {}, {})\n", options.path, info.attempt, info.step,
                 format_bytes(static_cast<double>(info.bytes)));
    }
  } catch (const CheckpointError& error) {
    if (!options.json) throw;
    boost::json::object object = {
        {"path", options.path}, {"intact", false}, {"reason", error.what()}};
    object["previous"] =
        error.previous() ? boost::json::value(error.previous()->string()) : nullptr;
    fmt::print("{}", pretty_json(object));
    context.status = kExitFailure;
  }
}

void list(const CheckpointOptions& options) {
  require_directory(options.path);
  std::filesystem::path root = options.path;
  if (std::filesystem::is_directory(root / "checkpoints")) root /= "checkpoints";
  std::vector<CheckpointInfo> all = list_checkpoints(root);
  if (all.empty() && !options.json) {
    fmt::print("there is no checkpoint in {}\n", root.string());
    return;
  }
  Table table({">attempt", ">step", ">size", "path"});
  boost::json::array rows;
  for (const CheckpointInfo& info : all) {
    table.add({std::to_string(info.attempt), std::to_string(info.step),
               format_bytes(static_cast<double>(info.bytes)), info.path.string()});
    rows.push_back(to_object(info));
  }
  fmt::print("{}", options.json ? pretty_json(rows) : table.text());
}

}  // namespace

void add_checkpoint_commands(Command& app, Context& context) {
  Command* checkpoint = app.add_subcommand("checkpoint", "Checkpoints on disk: list and verify");
  checkpoint->require_subcommand(1);
  auto options = std::make_shared<CheckpointOptions>();

  Command* verify_command = checkpoint->add_subcommand(
      "verify", "Compares size and hash of every file with the manifest; status 1 when damaged");
  verify_command->add_option("DIR", options->path, "A checkpoint directory")->required();
  verify_command->add_flag("--json", options->json, "Print JSON");
  verify_command->footer(
      "Example:\n  gnomon checkpoint verify runs/demo/checkpoints/attempt-0001/step-00000120");
  verify_command->callback([options, &context] { verify(*options, context); });

  Command* list_command = checkpoint->add_subcommand("list", "All checkpoints of a run");
  list_command->add_option("ROOT", options->path, "A run's directory, or its checkpoints/")
      ->required();
  list_command->add_flag("--json", options->json, "Print JSON");
  list_command->footer("Example:\n  gnomon checkpoint list runs/demo");
  list_command->callback([options] { list(*options); });

  add_checkpoint_model_commands(*checkpoint);
}

}  // namespace gnomon::cli
