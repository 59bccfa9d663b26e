// fuzz_corpus DIR: writes the kept corpus of the readers, valid files by our own writers and files
// that lie by hand. The folder in the repository was made by it; the daemon's inputs, which were
// written by hand, and the fuzzers' own finds are kept beside these.
#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/philox.h"
#include "controller/decide/policy.h"
#include "protocol/json.h"
#include "protocol/precision_plan.h"
#include "storage/checkpoint_manifest.h"
#include "storage/dataset_description.h"
#include "storage/safetensors.h"
#include "storage/token_shards.h"

namespace gnomon::fuzz {
namespace {

class Corpus {
 public:
  Corpus(const std::filesystem::path& root, const char* target) : folder_(root / target) {
    std::filesystem::create_directories(folder_);
  }
  std::filesystem::path path(const std::string& name) const { return folder_ / name; }
  void add(const std::string& name, std::string_view content) const {
    write_file_atomically(path(name), content);
  }

 private:
  std::filesystem::path folder_;
};

std::string with_length(uint64_t length, const std::string& header, const std::string& data) {
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file + header + data;
}

void add_safetensors(const Corpus& corpus) {
  const std::vector<float> floats = {1, -2, 3, 4};
  const std::vector<int64_t> integers = {7};
  write_safetensors(corpus.path("two_tensors"),
                    std::vector<TensorView>{{"weight", "F32", {2, 2}, floats.data()},
                                            {"step", "I64", {1}, integers.data()}},
                    {{"format", "pt"}});
  write_safetensors(corpus.path("no_tensor"), std::vector<TensorView>{});
  write_safetensors(corpus.path("empty_extent"),
                    std::vector<TensorView>{{"nothing", "BF16", {0, 5}, nullptr}});
  auto lie = [&corpus](const char* name, const std::string& header, const std::string& data) {
    std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
    corpus.add(name, with_length(padded.size(), padded, data));
  };
  const std::string eight(8, 'x');
  const char* tensor = R"({{"a":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}}}})";
  lie("unknown_dtype", fmt::format(fmt::runtime(tensor), "F9", "2", 0, 8), eight);
  lie("wrong_size", fmt::format(fmt::runtime(tensor), "F32", "3", 0, 8), eight);
  lie("behind_the_end", fmt::format(fmt::runtime(tensor), "F32", "4", 0, 16), eight);
  lie("backwards", fmt::format(fmt::runtime(tensor), "F32", "2", 8, 0), eight);
  lie("hole", fmt::format(fmt::runtime(tensor), "F32", "1", 4, 8), eight);
  lie("negative_extent", fmt::format(fmt::runtime(tensor), "F32", "-2", 0, 8), eight);
  lie("shape_overflows",
      fmt::format(fmt::runtime(tensor), "F32", "4294967296,4294967296,4294967296", 0, 8), eight);
  lie("shape_wraps_to_fit", fmt::format(fmt::runtime(tensor), "F32", "4611686018427387906", 0, 8),
      eight);
  lie("huge_offsets",
      fmt::format(fmt::runtime(tensor), "U8", "8", "18446744073709551608", "18446744073709551615"),
      eight);
  lie("overlap",
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
      eight);
  lie("twice_the_same_name",
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
      eight);
  lie("no_object", R"([1,2,3])", eight);
  lie("deep", std::string(3000, '['), "");
  corpus.add("header_longer_than_file", with_length(1000, "{}", ""));
  corpus.add("header_length_of_2_to_63", with_length(uint64_t{1} << 63, "{}", ""));
  corpus.add("header_length_zero", with_length(0, "{}", ""));
  corpus.add("seven_bytes", "1234567");
}

void add_indices(const Corpus& corpus) {
  const auto add = [&corpus](const char* name, const std::string& map) {
    corpus.add(name, fmt::format(R"({{"metadata":{{"total_size":8}},"weight_map":{{{}}}}})", map));
  };
  add("both", R"("a":"a.safetensors","b":"b.safetensors")");
  add("one", R"("a":"a.safetensors")");
  add("swapped", R"("a":"b.safetensors","b":"a.safetensors")");
  add("missing", R"("a":"c.safetensors")");
  add("elsewhere", R"("a":"../a.safetensors")");
  add("long_name", fmt::format(R"("a":"{}.safetensors")", std::string(300, 'x')));
  add("no_name", R"("a":7)");
}

void add_shards(const Corpus& corpus) {
  for (bool wide : {false, true}) {
    ShardWriter writer(corpus.path(wide ? "wide" : "narrow"), wide);
    writer.append(std::vector<uint32_t>{0, 1, 256, wide ? 70'000u : 65'535u, 2});
    writer.finish();
  }
  ShardWriter(corpus.path("no_tokens"), false).finish();
  auto header = [](std::vector<int32_t> first, const std::string& data) {
    first.resize(256);
    return std::string(reinterpret_cast<const char*>(first.data()), 1024) + data;
  };
  corpus.add("count_too_large", header({kShardMagic16, kShardVersion16, 2'147'483'647}, "abcd"));
  corpus.add("count_negative", header({kShardMagic16, kShardVersion16, -1}, ""));
  corpus.add("version_of_the_other", header({kShardMagic32, kShardVersion16, 1}, "abcd"));
  corpus.add("foreign", header({0x46554747, 3, 1}, "ab"));
  corpus.add("token_beyond_int32", header({kShardMagic32, kShardVersion32, 1}, "\xFF\xFF\xFF\xFF"));
  corpus.add("header_cut", header({kShardMagic16, kShardVersion16, 0}, "").substr(0, 1000));
}

void add_plans(const Corpus& corpus) {
  corpus.add("bf16.toml", PrecisionPlan::bf16().to_toml());
  corpus.add("fp8.toml", PrecisionPlan::fp8().to_toml());
  corpus.add("pinned.toml", PrecisionPlan::fp8(Recipe::kDelayed)
                                .with_bf16_sites({"lm_head", "model.layers.3.mlp.down_proj"})
                                .to_toml());
  corpus.add("rules.toml",
             "version = 7\n[[rule]]\nmatch = \"model.layers.{0,last}.*\"\nfprop = \"fp8\"\n"
             "forward_format = \"e4m3\"\nrecipe = \"delayed\"\namax_history = 16\nmargin = -2\n");
  corpus.add(
      "by_gemm.toml",
      "allow_ragged_tiles = true\n[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"current\"\n"
      "accumulate = \"hopper\"\npromote_every = 64\n[[rule]]\nmatch = \"*\"\nonly = [\"dgrad\", "
      "\"wgrad\"]\nrecipe = \"mx\"\nmx_scale = \"ocp\"\naccumulate = \"fp32\"\npromote_every = "
      "128\n");
  corpus.add("glob_stars.toml",
             "[[rule]]\nmatch = \"" + std::string(60, '*') + "{a,{b}\"\nwgrad = \"bf16\"\n");
  corpus.add("unknown_key.toml", "[[rule]]\nmatch = \"*\"\nfrpop = \"fp8\"\n");
  corpus.add("number_too_large.toml", "version = 99999999999999999999\n");
  corpus.add("not_closed.toml", "[[rule]\nmatch = \"\\u12");
}

void add_policies(const Corpus& corpus) {
  corpus.add("default.toml", decide::Policy{}.to_toml());
  corpus.add("demo.toml",
             "mode = \"observe\"\n[window]\nevery = 20\nsteps = 10\n[ladder]\n"
             "rungs = [\"pin\", \"bf16\", \"hold\"]\nfrom = \"last_verified\"\n");
  corpus.add("contradiction.toml", "[window]\nevery = 10\nsteps = 20\n");
  corpus.add("wrong_type.toml", "[detector]\ntolerance_percent = \"much\"\n");
  corpus.add("not_a_number.toml", "[detector]\nspike_sigma = nan\ntolerance_percent = inf\n");
  corpus.add("table_twice.toml", "[window]\nevery = 10\n[window]\nsteps = 5\n");
}

void add_messages(const Corpus& corpus) {
  RunRegistration registration;
  registration.name = "run \"one\"";
  registration.job_id = "job";
  registration.base_plan = PrecisionPlan::fp8().to_toml();
  registration.sites = {"lm_head", "model.layers.0.mlp.up_proj"};
  registration.layers = 1;
  registration.checkpoint_every = 10;
  registration.faults = {{"frozen_scale", "lm_head", 3, 9, "a fault"}};
  corpus.add("registration", "a" + to_json(registration));
  StepBatch batch;
  batch.steps.resize(2);
  batch.steps[1].loss = 0.1;
  corpus.add("steps", "b" + to_json(batch));
  DeviceHealth& health = batch.steps[1].device_health.emplace();
  health.device = "0000:01:00.0";
  health.power_watts = 520.5;
  health.ecc_uncorrected = 2;
  health.throttle_reasons = std::vector<ThrottleReason>{"idle", "hw_power_brake"};
  health.remapped_rows_pending = true;
  corpus.add("watched_steps", "b" + to_json(batch));
  corpus.add("checkpoint", "c" + to_json(CheckpointReport{}));
  corpus.add("attempt", "d" + to_json(AttemptStart{}));
  corpus.add("lease", "k" + to_json(Lease{}));
  corpus.add("result", "m" + to_json(ReplayResult{}));
  corpus.add("statistics", "p" + to_json(StatisticsReport{}));
  corpus.add("problem", "o" + to_json(Problem{}));
  corpus.add("repeated_member", R"(d{"attempt":1,"attempt":2})");
  corpus.add("unknown_member", R"(o{"colour":"red"})");
  corpus.add("integer_too_large", R"(d{"attempt":9223372036854775808})");
  corpus.add("number_without_end", "d{\"attempt\":1e" + std::string(400, '9') + "}");
  corpus.add("deep", "o" + std::string(3000, '['));
  corpus.add("half_a_surrogate", R"(o{"title":"\ud800"})");
}

// Events by chance: nothing but bytes that choose.
void add_decide(const Corpus& corpus) {
  for (uint64_t run = 0; run < 6; ++run) {
    std::string bytes;
    for (uint64_t i = 0; i < 200; ++i) bytes += static_cast<char>(philox(5, run, i)[0] & 0xff);
    corpus.add(fmt::format("chance_{}", run), bytes);
  }
}

void add_manifests(const Corpus& corpus) {
  const std::string hash(32, 'a');
  const std::string two = to_json(CheckpointManifest{
      2, 40, {{"config.json", 100, hash}, {"model.safetensors", int64_t{5} << 40, hash}}});
  corpus.add("two_files", two);
  corpus.add("no_file", to_json(CheckpointManifest{1, 0, {}}));
  corpus.add("negative", to_json(CheckpointManifest{-1, -2, {{"../x", -3, ""}}}));
  corpus.add("sizes_past_2_to_63",
             to_json(CheckpointManifest{1,
                                        0,
                                        {{"config.json", int64_t{1} << 62, hash},
                                         {"model.safetensors", int64_t{1} << 62, hash},
                                         {"optimizer.safetensors", 1, hash},
                                         {"trainer_state.json", 1, hash}}}));
  corpus.add("whole", to_json(CheckpointManifest{2,
                                                 40,
                                                 {{"config.json", 100, hash},
                                                  {"model.safetensors", 5000, hash},
                                                  {"optimizer.safetensors", 10'000, hash},
                                                  {"trainer_state.json", 100, hash}}}));
  corpus.add("cut", two.substr(0, two.size() / 2));
  corpus.add("another_version", "{\"format\": \"gnomon-checkpoint\", \"version\": 99}");
}

void add_datasets(const Corpus& corpus) {
  DatasetDescription description;
  description.info.tokenizer = "bytes";
  description.info.vocabulary = 257;
  description.info.train_tokens = 100;
  description.info.heldout_tokens = 10;
  const std::string hash(32, 'b');
  description.shards = {{"train_000000.bin", false, 100, hash},
                        {"heldout_000000.bin", true, 10, hash}};
  description.info.content_hash = content_hash(description.shards);
  corpus.add("two_shards", to_json(description));
  description.shards.front().file = "/etc/passwd";
  corpus.add("elsewhere", to_json(description));
  description.shards.clear();
  corpus.add("no_shard", to_json(description));
  corpus.add("not_closed", to_json(description).substr(0, 60));
}

// Bytes as series_target.cc reads them.
void add_series(const Corpus& corpus) {
  auto add = [&corpus](const char* name, const std::vector<int>& bytes) {
    corpus.add(name, std::string(bytes.begin(), bytes.end()));
  };
  constexpr int kAll = 255;  // every token fits
  add("two_splits", {1, kAll, 0, 0, 20, 1, 1, 0, 5, 9});
  add("many_shards", {1, kAll, 2, 0, 7, 1, 0, 0, 1, 2, 2, 0, 0, 3, 0, 0, 60, 4, 1, 0, 3, 9});
  add("small_vocabulary", {0, 20, 0, 0, 30, 1, 1, 0, 5, 9});
  add("cut_when_open", {2, kAll, 0, 0, 20, 1, 0, 0, 4, 7, 1, 0, 5, 9});
  add("description_has_more", {0, kAll, 0, 0x20, 20, 1, 1, 0, 5, 9});
  add("header_has_more", {0, kAll, 0, 0x02, 20, 1, 1, 0, 5, 9});
  add("both_have_more", {0, kAll, 0, 0x22, 20, 1, 1, 0, 5, 9});
  add("both_have_much_more", {0, kAll, 8, 0x77, 20, 1, 9, 0x77, 5, 9});
  add("missing", {0, kAll, 4, 0, 20, 1, 1, 0, 5, 9});
  add("wrong_hash", {1, kAll, 16, 0, 20, 1, 1, 0, 5, 9});
  add("header_of_other_width", {0, kAll, 32, 0, 20, 1, 35, 0, 5, 9});
  add("header_of_other_width_fits", {0, kAll, 32, 0x88, 16, 1, 1, 0, 5, 9});
  add("byte_behind", {0, kAll, 64, 0, 20, 1, 1, 0, 5, 9});
  add("no_heldout", {0, kAll, 0, 0, 20, 1});
}

}  // namespace
}  // namespace gnomon::fuzz

int main(int argc, char** argv) {
  using namespace gnomon::fuzz;
  if (argc != 2) {
    fmt::print(stderr, "usage: fuzz_corpus DIR\n");
    return 2;
  }
  add_safetensors({argv[1], "safetensors"});
  add_indices({argv[1], "index"});
  add_shards({argv[1], "shard"});
  add_plans({argv[1], "plan"});
  add_policies({argv[1], "policy"});
  add_messages({argv[1], "json"});
  add_manifests({argv[1], "manifest"});
  add_datasets({argv[1], "dataset"});
  add_series({argv[1], "series"});
  add_decide({argv[1], "decide"});
  return 0;
}
