#include "tests/fuzz/targets.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/temporary_directory.h"
#include "controller/decide/policy.h"
#include "protocol/json.h"
#include "protocol/labels.h"
#include "protocol/precision_plan.h"
#include "storage/checkpoint_manifest.h"
#include "storage/dataset_description.h"
#include "storage/safetensors.h"
#include "storage/safetensors_directory.h"
#include "storage/token_shards.h"
#include "tests/fuzz/decide_target.h"
#include "tests/fuzz/series_target.h"

namespace gnomon::fuzz {
namespace {

// A file of these bytes that lives in memory only.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const uint8_t> content)
      : fd_(::memfd_create("fuzz", MFD_CLOEXEC)),
        path_(fmt::format("/proc/self/fd/{}", fd_.get())) {
    require(static_cast<bool>(fd_), "memfd_create failed");
    write_all(fd_.get(), text_of(content), path_);
  }
  const std::string& path() const { return path_; }

 private:
  FileDescriptor fd_;
  std::string path_;
};

// Every byte that the header gives to a tensor is there to be read: the tensors lie one behind the
// other and end where the file ends. (A mapping's last page can be read beyond the file.)
void run_safetensors(std::span<const uint8_t> input) {
  MemoryFile file(input);
  try {
    SafetensorsFile tensors(file.path());
    uint64_t header_bytes;
    std::memcpy(&header_bytes, input.data(), sizeof header_bytes);
    int64_t end = static_cast<int64_t>(sizeof header_bytes + header_bytes);
    for (const TensorView& tensor : tensors.tensors()) {
      require(tensors.find(tensor.name) == &tensor, "a tensor is not found under its name");
      require(&tensors.require(tensor.name, tensor.dtype, tensor.shape) == &tensor,
              "a tensor is not what it says");
      const auto* data = static_cast<const uint8_t*>(tensor.data);
      const auto rest = input.subspan(std::min(static_cast<size_t>(end), input.size()));
      require(tensor.bytes() <= std::ssize(rest), "a tensor ends behind its file");
      require(tensor.bytes() == 0 ||
                  std::memcmp(data, rest.data(), static_cast<size_t>(tensor.bytes())) == 0,
              "a tensor's bytes are not those of its place");
      end += tensor.bytes();
    }
    require(end == std::ssize(input), "the tensors do not end where the file ends");
  } catch (const Error&) {
  }
}

// A directory with two files of one tensor each.
struct NamedTensors {
  NamedTensors() {
    const float value = 1;
    for (const char* name : {"a", "b"})
      write_safetensors(folder / fmt::format("{}.safetensors", name),
                        std::vector<TensorView>{{name, "F32", {1}, &value}});
  }
  TemporaryDirectory folder;
};

void run_index(std::span<const uint8_t> input) {
  static const NamedTensors named;
  const TemporaryDirectory& folder = named.folder;
  write_plainly(folder / "model.safetensors.index.json", text_of(input));
  try {
    const SafetensorsDirectory directory(folder.path());
    for (const auto& [name, tensor] : directory.tensors())
      require(std::filesystem::path(tensor.file).parent_path() == folder.path(),
              "a tensor from elsewhere");
    require(directory.bytes() == 4 * std::ssize(directory.tensors()), "tensors of other sizes");
  } catch (const FormatError&) {
  } catch (const SystemError&) {
  }
}

void run_shard(std::span<const uint8_t> input) {
  MemoryFile file(input);
  try {
    TokenShards shards({file.path(), file.path()});  // twice: reading across a boundary
    require(shards.tokens() <= static_cast<int64_t>(input.size()),
            "more tokens than the file can hold");
    for (int32_t vocabulary : {0, 257}) {
      shards.set_vocabulary(vocabulary);
      std::vector<int32_t> tokens(static_cast<size_t>(shards.tokens()));
      try {
        shards.read(0, tokens);
      } catch (const FormatError&) {  // a token that the vocabulary lacks
        continue;
      }
      for (int32_t token : tokens) {
        require(token >= 0 && (vocabulary == 0 || token < vocabulary), "a token out of range");
      }
    }
  } catch (const Error&) {
  }
}

void run_plan(std::span<const uint8_t> input) {
  const std::vector<std::string> sites = {"model.layers.0.self_attn.q_proj",
                                          "model.layers.3.mlp.down_proj", "lm_head"};
  try {
    PrecisionPlan plan = PrecisionPlan::parse(text_of(input));
    PrecisionPlan again = PrecisionPlan::parse(plan.to_toml());
    require(again.to_toml() == plan.to_toml(), "a plan changes when it is written and read");
    for (const std::string& site : sites) {
      require(again.resolve(site, 4) == plan.resolve(site, 4), "a written plan means another");
    }
    plan.check_sites(sites, 4);
  } catch (const ConfigError&) {
  }
}

void run_policy(std::span<const uint8_t> input) {
  try {
    decide::Policy policy = decide::Policy::parse(text_of(input));
    require(decide::Policy::parse(policy.to_toml()).to_toml() == policy.to_toml(),
            "a policy changes when it is written and read");
  } catch (const ConfigError&) {
  }
}

template <class Message>
void read_message(std::string_view text) {
  Message message = from_json<Message>(text);
  std::string written = to_json(message);
  require(to_json(from_json<Message>(written)) == written,
          "a message changes when it is written and read");
}

constexpr std::array kReadMessage = {&read_message<RunRegistration>,
                                     &read_message<StepBatch>,
                                     &read_message<CheckpointReport>,
                                     &read_message<AttemptStart>,
                                     &read_message<RunFinished>,
                                     &read_message<TrainerNotice>,
                                     &read_message<DirectiveList>,
                                     &read_message<DirectiveAck>,
                                     &read_message<OverrideRequest>,
                                     &read_message<LeaseRequest>,
                                     &read_message<Lease>,
                                     &read_message<LeaseHeartbeat>,
                                     &read_message<ReplayResult>,
                                     &read_message<LeaseFailure>,
                                     &read_message<Problem>,
                                     &read_message<StatisticsReport>,
                                     &read_message<RunRegistered>,
                                     &read_message<ReportAck>,
                                     &read_message<Directive>,
                                     &read_message<OverrideAccepted>,
                                     &read_message<Fingerprint>};

// The first byte, counted from 'a', says which message the rest is to be read as.
void run_json(std::span<const uint8_t> input) {
  if (input.empty()) return;
  size_t message = static_cast<size_t>(input[0] + 256 - 'a') % 256 % kReadMessage.size();
  try {
    kReadMessage[message](text_of(input.subspan(1)));
  } catch (const JsonError&) {
  }
}

// Three lines: a key, a value, a requirement.
void run_labels(std::span<const uint8_t> input) {
  const std::string_view text = text_of(input);
  const size_t first = std::min(text.find('\n'), text.size());
  const size_t second = std::min(text.find('\n', first + 1), text.size());
  const std::string_view key = text.substr(0, first);
  const std::string_view value = text.substr(std::min(first + 1, second), second - first);
  const std::string_view requirement = text.substr(std::min(second + 1, text.size()));
  const bool good = label_error(key, value).empty();
  if (good) {
    require(requirement_error(std::string(key) + "=*").empty(), "a label cannot be required");
    require(fits({{std::string(key), std::string(value)}}, {std::string(key) + "=*"}),
            "a label does not fit what takes any");
  }
  if (requirement_error(requirement).empty()) {
    fits({{std::string(key), std::string(value)}}, {std::string(requirement)});
  }
}

void read_manifest(const std::string& text) {
  try {
    const CheckpointManifest manifest = parse_manifest(text, "manifest.json");
    require(to_json(manifest) == text, "a manifest is taken that is none of ours");
    require(manifest.bytes() >= 0, "a checkpoint of fewer bytes than none");
  } catch (const FormatError&) {
  }
}

// As it is, and with the checksum that belongs to it: otherwise few numbers would be looked at.
void run_manifest(std::span<const uint8_t> input) {
  const std::string text(text_of(input));
  read_manifest(text);
  const size_t end = text.find("  \"checksum\"");
  if (end == std::string::npos) return;
  Hash128 checksum;
  checksum.update(text.data(), end);
  read_manifest(text.substr(0, end) + fmt::format("  \"checksum\": \"{}\"\n}}\n", checksum.hex()));
}

void run_dataset(std::span<const uint8_t> input) {
  const TemporaryDirectory folder;
  write_plainly(folder / kDatasetFile, text_of(input));
  try {
    const DatasetDescription description = read_dataset_description(folder.path());
    write_plainly(folder / kDatasetFile, to_json(description));
    require(to_json(read_dataset_description(folder.path())) == to_json(description),
            "a description changes when it is written and read");
    Dataset::open(folder.path());
  } catch (const FormatError&) {
  } catch (const SystemError&) {  // a file that is not there
  }
}

constexpr std::array kReaderTargets = {Target{"safetensors", run_safetensors},
                                       Target{"index", run_index, 2'000},
                                       Target{"shard", run_shard},
                                       Target{"plan", run_plan},
                                       Target{"policy", run_policy},
                                       Target{"json", run_json},
                                       Target{"labels", run_labels},
                                       Target{"manifest", run_manifest},
                                       Target{"dataset", run_dataset, 3'000},
                                       Target{"series", run_series, 2'000},
                                       Target{"decide", run_decide, 100, kAnyMemory}};

}  // namespace

std::span<const Target> reader_targets() { return kReaderTargets; }

}  // namespace gnomon::fuzz
