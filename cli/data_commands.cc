#include <fmt/format.h>

#include <memory>
#include <optional>

#include "base/progress.h"
#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/table.h"
#include "storage/prepare.h"

namespace gnomon::cli {
namespace {

constexpr int64_t kSequenceTokens = 64;  // the shortest that demos and tests train with

struct DataOptions {
  PrepareOptions prepare;
  std::vector<std::string> inputs;
  std::string directory;
  bool json = false;
};

void print_info(const DatasetInfo& info, const std::string& directory, bool json) {
  if (json) {
    fmt::print("{}", pretty_json(boost::json::object{{"directory", directory},
                                                     {"tokenizer", info.tokenizer},
                                                     {"vocabulary", info.vocabulary},
                                                     {"tokenizer_model", info.tokenizer_model},
                                                     {"train_tokens", info.train_tokens},
                                                     {"heldout_tokens", info.heldout_tokens},
                                                     {"input_bytes", info.input_bytes},
                                                     {"content_hash", info.content_hash}}));
    return;
  }
  fmt::print(
      "{}: {} tokens to train on and {} held out, from {} of text; tokenizer {}, vocabulary {}\n",
      directory, info.train_tokens, info.heldout_tokens,
      format_bytes(static_cast<double>(info.input_bytes)), info.tokenizer, info.vocabulary);
}

void prepare(DataOptions& options) {
  options.prepare.inputs.assign(options.inputs.begin(), options.inputs.end());
  options.prepare.output = options.directory;
  std::optional<Progress> progress;
  DatasetInfo info = prepare_dataset(options.prepare, [&](int64_t done, int64_t total) {
    if (total == 0) return;
    if (!progress) progress.emplace("prepare", total);
    progress->update(done, fmt::format("{} of {}", format_bytes(static_cast<double>(done)),
                                       format_bytes(static_cast<double>(total))));
  });
  if (progress) progress->finish();
  print_info(info, options.directory, options.json);
}

}  // namespace

void add_data_commands(Command& app, Context&) {
  Command* data = app.add_subcommand("data", "Training data: text or JSONL into token shards");
  data->require_subcommand(1);
  auto options = std::make_shared<DataOptions>();

  options->prepare.sequence_tokens = kSequenceTokens;
  Command* make =
      data->add_subcommand("prepare", "Tokenises text into shards with a held-out split");
  make->add_option("--input", options->inputs, "Files or directories")->required()->expected(1, -1);
  make->add_option("--out", options->directory, "Dataset directory to write")->required();
  make->add_option("--tokenizer", options->prepare.tokenizer,
                   "bytes, sentencepiece:VOCAB (trains one) or FILE.model")
      ->capture_default_str();
  make->add_option("--jsonl-field", options->prepare.jsonl_field,
                   "Field of .jsonl files with the text")
      ->capture_default_str();
  make->add_option("--heldout", options->prepare.heldout_share, "Share of the documents held out")
      ->capture_default_str();
  make->add_option("--sequence", options->prepare.sequence_tokens,
                   "Tokens in a sequence of the runs to come (batch.tokens): text that does not "
                   "give one for each split is refused")
      ->capture_default_str();
  make->add_option("--shard-tokens", options->prepare.shard_tokens, "Tokens in a shard at most")
      ->capture_default_str();
  make->add_flag("--json", options->json, "Print JSON");
  make->footer(
      "Example:\n  gnomon data prepare --input docs/ --out data/docs --tokenizer "
      "sentencepiece:2048");
  make->callback([options] { prepare(*options); });

  Command* info = data->add_subcommand(
      "info", "Contents of a dataset directory; every shard is compared with its hash");
  info->add_option("DIR", options->directory, "Dataset directory")->required();
  info->add_flag("--json", options->json, "Print JSON");
  info->footer("Example:\n  gnomon data info data/docs");
  info->callback([options] {
    print_info(Dataset::open(options->directory, DatasetCheck::kContents).info, options->directory,
               options->json);
  });
}

}  // namespace gnomon::cli
