#include "tests/trainer/tiny_run.h"

#include <fmt/format.h>

#include <fstream>

#include "storage/prepare.h"

namespace gnomon::test {

void make_tiny_dataset(const std::filesystem::path& directory) {
  const std::filesystem::path text =
      directory.parent_path() / (directory.filename().string() + "-text");
  std::filesystem::create_directories(text);
  constexpr int kDocuments = 100;
  for (int document = 0; document < kDocuments; ++document) {
    std::ofstream out(text / fmt::format("{:03}.txt", document));
    for (int line = 0; line < 50; ++line) {
      out << fmt::format("Line {} of document {}: {} times {} is {}.\n", line, document, line,
                         document, line * document);
    }
  }
  PrepareOptions options;
  options.inputs = {text};
  options.output = directory;
  options.heldout_share = 0.1;
  prepare_dataset(options);
}

std::filesystem::path write_tiny_config(const std::filesystem::path& directory,
                                        const std::filesystem::path& data, int steps,
                                        const std::string& extra) {
  std::filesystem::create_directories(directory);
  const std::filesystem::path path = directory / "run.toml";
  std::ofstream out(path);
  out << fmt::format(R"([run]
name = "tiny"
job_id = "7"
dir = "here"
seed = 3
steps = {}
threads = 1

[model]
layers = 2
width = 32
heads = 2
kv_heads = 1
ffn = 64
context = 32

[data]
dir = "{}"

[batch]
sequences = 2
tokens = 32

[eval]
sequences = 4

[optimizer]
warmup_steps = 5

[precision]
recipe = "delayed"

[checkpoint]
every = 10
keep_last = 2

{}
)",
                     steps, data.string(), extra);
  return path;
}

}  // namespace gnomon::test
