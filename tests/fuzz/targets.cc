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
#include "controller/decide/policy.h"
#include "protocol/json.h"
#include "protocol/precision_plan.h"
#include "storage/safetensors.h"
#include "storage/token_shards.h"
#include "tests/fuzz/decide_target.h"

namespace gnomon::fuzz {
namespace {

// Ends the program, so that every driver sees it.
void require(bool holds, const char* what) {
  if (holds) return;
  fmt::print(stderr, "fuzz: {}\n", what);
  std::abort();
}

std::string_view text_of(std::span<const uint8_t> input) {
  return {reinterpret_cast<const char*>(input.data()), input.size()};
}

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
  } catch (const Error&) {
  }
}

void run_policy(std::span<const uint8_t> input) {
  try {
    decide::Policy policy = decide::Policy::parse(text_of(input));
    require(decide::Policy::parse(policy.to_toml()).to_toml() == policy.to_toml(),
            "a policy changes when it is written and read");
  } catch (const Error&) {
  }
}

template <class Message>
void read_message(std::string_view text) {
  Message message = from_json<Message>(text);
  std::string written = to_json(message);
  require(to_json(from_json<Message>(written)) == written,
          "a message changes when it is written and read");
}

constexpr std::array kReadMessage = {
    &read_message<RunRegistration>, &read_message<StepBatch>,    &read_message<CheckpointReport>,
    &read_message<AttemptStart>,    &read_message<RunFinished>,  &read_message<TrainerNotice>,
    &read_message<DirectiveList>,   &read_message<DirectiveAck>, &read_message<OverrideRequest>,
    &read_message<LeaseRequest>,    &read_message<Lease>,        &read_message<LeaseHeartbeat>,
    &read_message<ReplayResult>,    &read_message<LeaseFailure>, &read_message<Problem>,
    &read_message<StatisticsReport>};

// The first byte, counted from 'a', says which message the rest is to be read as.
void run_json(std::span<const uint8_t> input) {
  if (input.empty()) return;
  size_t message = static_cast<size_t>(input[0] + 256 - 'a') % 256 % kReadMessage.size();
  try {
    kReadMessage[message](text_of(input.subspan(1)));
  } catch (const Error&) {
  }
}

constexpr std::array kTargets = {Target{"safetensors", run_safetensors},
                                 Target{"shard", run_shard},
                                 Target{"plan", run_plan},
                                 Target{"policy", run_policy},
                                 Target{"json", run_json},
                                 Target{"decide", run_decide, 300}};

}  // namespace

std::span<const Target> targets() { return kTargets; }

const Target* find_target(std::string_view name) {
  for (const Target& target : kTargets) {
    if (target.name == name) return &target;
  }
  return nullptr;
}

}  // namespace gnomon::fuzz
