// Checkpoints of an Engine: what is in them and how they are taken back.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <charconv>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <type_traits>

#include "base/errors.h"
#include "base/files.h"
#include "base/hash.h"
#include "storage/safetensors.h"
#include "trainer/engine/engine_impl.h"
#include "trainer/engine/json_fields.h"

namespace gnomon {
namespace {

namespace json = boost::json;

constexpr const char* kStateFormat = "gnomon trainer state";
constexpr int kStateVersion = 1;
constexpr const char* kHashKind = "placed";

// [[number of the push, bits of the FP32 amax in hexadecimal], ...]
json::array to_json(const AmaxHistory& history) {
  json::array entries;
  for (const AmaxHistory::Entry& entry : history.entries()) {
    entries.push_back(
        json::array{entry.index, fmt::format("{:08x}", std::bit_cast<uint32_t>(entry.amax))});
  }
  return entries;
}

AmaxHistory::Entry entry_from(const json::value& value, const JsonFields& fields) {
  const json::array* pair = value.if_array();
  if (pair == nullptr || pair->size() != 2 || !(*pair)[0].is_int64() || !(*pair)[1].is_string()) {
    fields.refuse("entries", "pairs of a whole number and eight hexadecimal digits");
  }
  const json::string& digits = (*pair)[1].get_string();
  uint32_t bits = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits, 16);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    fields.refuse("entries", "eight hexadecimal digits");
  }
  return {(*pair)[0].get_int64(), std::bit_cast<float>(bits)};
}

json::array to_json(const ScalingState& scaling, const std::vector<std::string>& sites) {
  json::array list;
  for (size_t site = 0; site < sites.size(); ++site) {
    for (TensorRole role : kAllTensorRoles) {
      const AmaxHistory& history = scaling.history(static_cast<int>(site), role);
      if (history.empty()) continue;
      list.push_back(json::object{{"site", sites[site]},
                                  {"tensor", tensor_role_name(role)},
                                  {"pushes", history.pushes()},
                                  {"entries", to_json(history)}});
    }
  }
  return list;
}

ScalingState scaling_from(const JsonFields& state, const std::vector<std::string>& sites) {
  ScalingState scaling(static_cast<int>(sites.size()));
  if (!state.at("scaling").is_array()) state.refuse("scaling", "an array");
  for (const json::value& value : state.at("scaling").get_array()) {
    JsonFields fields(value, state.file());
    auto site = std::find(sites.begin(), sites.end(), fields.text("site"));
    if (site == sites.end()) fields.refuse("site", "a GEMM site of the model");
    std::vector<AmaxHistory::Entry> entries;
    if (!fields.at("entries").is_array()) fields.refuse("entries", "an array");
    for (const json::value& entry : fields.at("entries").get_array()) {
      entries.push_back(entry_from(entry, fields));
    }
    try {
      scaling
          .history(static_cast<int>(site - sites.begin()),
                   tensor_role_from_name(fields.text("tensor")))
          .restore(fields.integer("pushes"), std::move(entries));
    } catch (const FormatError&) {
      throw;
    } catch (const Error& error) {
      throw FormatError(state.file(), 0, error.what(), "scaling state as a trainer writes it");
    }
  }
  return scaling;
}

template <typename T>
constexpr const char* kDtype = std::is_same_v<std::remove_const_t<T>, float> ? "F32" : "BF16";

template <typename T>
void add_views(const ParameterLayout& layout, const std::string& prefix, std::span<T> all,
               std::vector<TensorView>& views) {
  for (const Parameter& parameter : layout.all()) {
    views.push_back(
        {prefix + parameter.name, kDtype<T>, parameter.shape, all.data() + parameter.offset});
  }
}

// Every tensor of `wanted` and no other, with its dtype and shape.
void check_tensors(const SafetensorsFile& file, const std::string& path,
                   const std::vector<TensorView>& wanted) {
  std::set<std::string> names;
  for (const TensorView& tensor : wanted) {
    file.require(tensor.name, tensor.dtype, tensor.shape);
    names.insert(tensor.name);
  }
  for (const TensorView& tensor : file.tensors()) {
    if (!names.contains(tensor.name)) {
      throw FormatError(path, 0, "tensor " + tensor.name, "only tensors that the model has");
    }
  }
}

void load_tensors(const SafetensorsFile& file, const std::vector<TensorView>& homes) {
  for (const TensorView& home : homes) {
    std::memcpy(const_cast<void*>(home.data), file.find(home.name)->data,
                static_cast<size_t>(home.bytes()));
  }
}

// Room on the host for all weights. Gradients are no state: where the host may use their memory it
// serves, and is zero again afterwards, as the gaps between gradients are (the norm is over all
// elements).
class Staging {
 public:
  Staging(Memory& memory, std::span<float> gradients, size_t bytes) {
    if (memory.on_host()) {
      borrowed_ = gradients;
      std::ranges::fill(borrowed_, 0.0f);
      room_ = std::as_writable_bytes(borrowed_).first(bytes);
    } else {
      own_.resize(bytes);
      room_ = own_;
    }
  }
  ~Staging() { std::ranges::fill(borrowed_, 0.0f); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  std::span<std::byte> room() const { return room_; }

 private:
  std::span<float> borrowed_;
  std::vector<std::byte> own_;
  std::span<std::byte> room_;
};

json::value read_state(const std::filesystem::path& checkpoint, const std::string& file) {
  json::value root = parse_json(read_file(checkpoint / "trainer_state.json"), file);
  JsonFields fields(root, file);
  if (fields.text("format") != kStateFormat)
    fields.refuse("format", fmt::format("\"{}\"", kStateFormat));
  if (fields.integer("format_version") != kStateVersion) {
    fields.refuse("format_version", std::to_string(kStateVersion));
  }
  return root;
}

// How many of the steps were updates.
int64_t updates_of(const JsonFields& state, int64_t step) {
  constexpr const char* kKey = "updates";
  const int64_t updates = state.integer(kKey);
  if (updates < 0 || updates > step) {
    state.refuse(kKey, fmt::format("0 to {}, the number of steps", step));
  }
  return updates;
}

// Hashes weights on the host as the hash in `state` was made; refuses one of another kind.
uint64_t hash_of(const JsonFields& state, std::span<const std::byte> weights) {
  if (state.text("weights_hash_kind") != kHashKind) {
    state.refuse("weights_hash_kind", fmt::format("\"{}\"", kHashKind));
  }
  return PlacedHash::of(PlacedHash::terms(weights.data(), weights.size()), weights.size());
}

std::string state_json(const EngineImpl& self, uint64_t hash) {
  json::object state{{"format", kStateFormat},
                     {"format_version", kStateVersion},
                     {"step", self.step},
                     {"updates", self.optimizer->state().updates()},
                     {"plan_version", self.plan.version},
                     {"plan", self.plan.to_toml()},
                     {"weights_hash", hex64(hash)},
                     {"weights_hash_kind", kHashKind},
                     {"data_hash", self.batches.content_hash()},
                     {"scaling", gnomon::to_json(self.scaling, self.model->sites())}};
  std::string text = json::serialize(state);
  text.pop_back();
  return text + ",\"engine\":" + self.config.to_json() + "}\n";
}

// All working weights, of rank 0; elsewhere none where they are shared out.
WeightSpan weights_for_checkpoint(EngineImpl& self) {
  if (!self.working().sharded()) return self.working().all();
  std::span<std::byte> room;
  if (self.room.weights != nullptr) room = self.room.weights->content();
  room = room.first(std::min(room.size(), static_cast<size_t>(self.weight_bytes())));
  self.working().gather(self.collectives, room);
  const auto elements = [&](auto* first) { return std::span(first, room.size() / sizeof(*first)); };
  if (self.config.compute == Compute::kFp32) return elements(reinterpret_cast<float*>(room.data()));
  return elements(reinterpret_cast<bf16*>(room.data()));
}

}  // namespace

void allocate_checkpoint_room(EngineImpl& self) {
  if (!self.group.many() || self.group.rank() != 0) return;
  const auto count = [&](const Arena& arena) {
    self.arenas.push_back({arena.name(), arena.bytes()});
  };
  self.room.optimizer = std::make_unique<OptimizerState>(
      "gathered optimizer", self.config.optimizer.name, self.config.memory.moments,
      Shard{0, self.model->layout().elements()}, host_memory());
  count(self.room.optimizer->arena());
  if (!self.working().sharded()) return;
  self.room.weights = std::make_unique<Arena>("gathered weights");
  self.room.weights->allocate<std::byte>(self.weight_bytes());
  self.room.weights->commit();
  count(*self.room.weights);
}

void bring_to_host(EngineImpl& self, CheckpointContent& content) {
  self.room.mirror.reset();
  if (self.memory().on_host()) return;
  int64_t bytes = 0;
  for (const auto* views : {&content.model, &content.optimizer}) {
    for (const TensorView& view : *views) bytes += view.bytes();
  }
  self.room.mirror = std::make_unique<HostRoom>(self.memory(), bytes, "the copy of a checkpoint");
  std::vector<Memory::Piece> pieces;
  std::byte* next = self.room.mirror->data();
  for (auto* views : {&content.model, &content.optimizer}) {
    for (TensorView& view : *views) {
      const auto size = static_cast<size_t>(view.bytes());
      pieces.push_back({{static_cast<const std::byte*>(view.data), size}, next});
      view.data = std::exchange(next, next + size);
    }
  }
  self.memory().start_copy_out(pieces)->wait();
}

CheckpointContent content_in_place(EngineImpl& self) {
  const ParameterLayout& layout = self.model->layout();
  CheckpointContent content;
  const uint64_t hash = self.weights_hash();
  const WeightSpan weights = weights_for_checkpoint(self);
  if (self.group.many()) {
    GNOMON_ASSERT(self.group.rank() != 0 || self.room.optimizer != nullptr);
    self.optimizer->state().gather(self.collectives, self.parts, self.room.optimizer.get());
    if (self.group.rank() != 0) return content;
  }
  content.config_json =
      self.config.model.to_hf_json(self.config.compute == Compute::kFp32 ? "float32" : "bfloat16");
  std::visit([&](auto all) { add_views(layout, "", all, content.model); }, weights);
  content.optimizer =
      (self.room.optimizer != nullptr ? *self.room.optimizer : self.optimizer->state())
          .views(layout);
  std::ranges::move(stale_weights(self, self.faults, self.step),
                    std::back_inserter(content.optimizer));
  content.trainer_state_json = state_json(self, hash);
  return content;
}

std::function<void()> read_checkpoint(EngineImpl& self, const std::filesystem::path& checkpoint,
                                      bool with_plan) {
  verify_checkpoint(checkpoint);
  std::string state_file = checkpoint / "trainer_state.json";
  std::string model_file = checkpoint / "model.safetensors";
  std::string optimizer_file = checkpoint / "optimizer.safetensors";
  json::value root = read_state(checkpoint, state_file);
  JsonFields state(root, state_file);
  EngineConfig config = EngineConfig::from_json(json::serialize(state.at("engine")), state_file);
  if (config.model != self.config.model) {
    throw ConfigError(state_file, 0, "model", config.model.to_hf_json(),
                      "the engine's own model: " + self.config.model.to_hf_json());
  }
  if (config.compute != self.config.compute) {
    throw ConfigError(state_file, 0, "compute", compute_name(config.compute),
                      "the engine's own: " + compute_name(self.config.compute));
  }
  if (config.optimizer.name != self.config.optimizer.name) {
    throw ConfigError(
        state_file, 0, "optimizer.name", std::string(optimizer_row(config.optimizer.name).name),
        fmt::format("the engine's own: {}", optimizer_row(self.config.optimizer.name).name));
  }
  if (state.text("data_hash") != self.batches.content_hash()) {
    throw ConfigError(
        state_file, 0, "data_hash", state.text("data_hash"),
        fmt::format("{}, the hash of {}", self.batches.content_hash(), self.config.data));
  }
  PrecisionPlan plan = PrecisionPlan::parse(state.text("plan"), state_file);
  ResolvedPlan resolved = self.check_plan(plan, state_file);
  ScalingState scaling = scaling_from(state, self.model->sites());

  const ParameterLayout& layout = self.model->layout();
  SafetensorsFile model(model_file);
  auto optimizer = std::make_shared<SafetensorsFile>(optimizer_file);
  // The weights are hashed before any state changes.
  const auto staging = std::make_shared<Staging>(self.memory(), self.model->gradients(),
                                                 static_cast<size_t>(self.weight_bytes()));
  std::vector<TensorView> weights;
  const auto add_staged = [&](auto* first) {
    add_views(layout, "", std::span(first, static_cast<size_t>(layout.elements())), weights);
  };
  if (self.config.compute == Compute::kFp32) {
    add_staged(reinterpret_cast<float*>(staging->room().data()));
  } else {
    add_staged(reinterpret_cast<bf16*>(staging->room().data()));
  }
  check_tensors(model, model_file, weights);
  int64_t step = state.integer("step");
  const int64_t updates = updates_of(state, step);
  const FaultView faults(config.faults, self.model->sites(), self.config.model.layers);
  std::vector<TensorView> wanted_state =
      OptimizerState::names(self.config.optimizer.name, layout, resolved.formats.moments);
  for (TensorView& stale : stale_weights(self, faults, step)) wanted_state.push_back(stale);
  check_tensors(*optimizer, optimizer_file, wanted_state);
  load_tensors(model, weights);
  const std::string hash = hex64(hash_of(state, staging->room()));
  if (hash != state.text("weights_hash")) {
    throw FormatError(model_file, 0, "weights with hash " + hash,
                      state.text("weights_hash") + " as trainer_state.json says");
  }

  return [&self, staging, optimizer, with_plan, step, updates, wanted = std::move(plan),
          stored = std::move(resolved), histories = std::move(scaling)]() mutable {
    const MomentFormats moments = stored.formats.moments;
    const RunFormats next = with_plan ? stored.formats : self.formats;
    self.memory().settle();
    self.working().load(staging->room());
    self.optimizer->state().set_formats(moments);
    self.optimizer->state().load(*optimizer, self.model->layout());
    self.optimizer->state().set_updates(updates);
    load_stale_weights(self, *optimizer, step);
    self.scaling = std::move(histories);
    if (with_plan) {
      self.plan = std::move(wanted);
      self.sites = std::move(stored.sites);
    }
    self.scaling.change(self.sites);
    self.step = step;
    self.ready = true;
    self.formats.moments = moments;
    self.change_formats(next);
  };
}

EngineConfig read_engine_config(const std::filesystem::path& checkpoint) {
  std::string file = checkpoint / "trainer_state.json";
  try {
    json::value root = read_state(checkpoint, file);
    return EngineConfig::from_json(json::serialize(JsonFields(root, file).at("engine")), file);
  } catch (const Error&) {
    verify_checkpoint(checkpoint);  // says what is wrong with the directory, if anything is
    throw;
  }
}

}  // namespace gnomon
