// What faults do to the state of an engine: weights, moments, stale copies. Those of tensors act
// where they are computed (linear.cc, scaling.cc).
#include <bit>
#include <cmath>

#include "base/errors.h"
#include "trainer/engine/engine_impl.h"

namespace gnomon {
namespace {

float with_bit(const Fault& fault, float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t bit = uint32_t{1} << fault.bit;
  if (fault.kind == FaultKind::kBitFlip) return std::bit_cast<float>(bits ^ bit);
  return std::bit_cast<float>(fault.value == 1 ? bits | bit : bits & ~bit);
}

const Parameter& struck_parameter(const Fault& fault, const ParameterLayout& layout) {
  if (fault.kind == FaultKind::kStuckBit) return layout.weight_of(fault.site);
  const Parameter* parameter = layout.find(fault.site);
  GNOMON_ASSERT(parameter != nullptr);
  return *parameter;
}

void round_moments(const MomentRounding& rounding, double amax, std::span<float> moments) {
  const float scale =
      std::ldexp(tile_scale(ScaleRule::kFp32, rounding.format, static_cast<float>(amax)),
                 rounding.log2_factor);
  for (float& moment : moments) moment = round_to(rounding.format, moment * scale) / scale;
}

}  // namespace

void Engine::Impl::strike_weights() {
  for (const Fault* fault : faults.struck_weights(step)) {
    if (fault->kind == FaultKind::kBitFlip && !flipped.insert(fault).second) continue;
    strike_weight(*fault);
  }
}

void Engine::Impl::strike_weight(const Fault& fault) {
  const int64_t element = struck_parameter(fault, model->layout()).offset + fault.element;
  const Shard& shard = optimizer->shard();
  int owner = 0;
  while (parts.begin(owner) + parts.size(owner) <= element) ++owner;
  float value = 0;
  if (owner == collectives.rank()) {
    const auto at = static_cast<size_t>(element - shard.begin);
    edit_on_host(memory(), optimizer->masters().subspan(at, 1),
                 [&](std::span<float> master) { value = master[0] = with_bit(fault, master[0]); });
  }
  collectives.broadcast(std::as_writable_bytes(std::span(&value, 1)), owner);
  working().set(std::span(&value, 1), element);
}

// A site's optimizer state is in FP8 where its GEMMs are: it is one recipe.
void Engine::Impl::round_second_moments(const std::vector<SitePrecision>& run, int64_t at) {
  std::vector<std::pair<MomentRounding, std::span<float>>> rounded;
  for (size_t site = 0; site < run.size(); ++site) {
    const std::optional<MomentRounding> how = faults.second_moment(static_cast<int>(site), at);
    if (!how || !run[site].any_fp8()) continue;
    const Parameter& weight = model->layout().weight_of(model->sites()[site]);
    const Shard& shard = optimizer->shard();
    const int64_t begin = std::max(weight.offset, shard.begin);
    const int64_t end = std::max(begin, std::min(weight.offset + weight.size, shard.end));
    const auto& moments = std::get<std::span<float>>(optimizer->second_moments());
    rounded.push_back({*how, begin == end
                                 ? std::span<float>()
                                 : moments.subspan(static_cast<size_t>(begin - shard.begin),
                                                   static_cast<size_t>(end - begin))});
  }
  if (rounded.empty()) return;
  std::vector<double> amaxes;
  for (const auto& [how, moments] : rounded) {
    float amax = 0;
    for (float moment : HostView<float>(memory(), moments)) amax = std::max(amax, moment);
    amaxes.push_back(static_cast<double>(amax));
  }
  collectives.all_reduce_max(amaxes);
  for (size_t i = 0; i < rounded.size(); ++i) {
    edit_on_host(memory(), rounded[i].second, [&](std::span<float> moments) {
      round_moments(rounded[i].first, amaxes[i], moments);
    });
  }
}

std::vector<TensorView> Engine::Impl::stale_weights(const FaultView& of, int64_t at) {
  std::vector<TensorView> views;
  for (int site = 0; site < static_cast<int>(model->sites().size()); ++site) {
    if (!of.stale(site, at)) continue;
    const std::string& name = model->sites()[static_cast<size_t>(site)];
    views.push_back({"stale." + name + ".weight", "BF16", model->layout().weight_of(name).shape,
                     model->stale_weight(site, at).data()});
  }
  return views;
}

void Engine::Impl::take_stale_weights(const SafetensorsFile& file, int64_t at) {
  model->forget_stale_weights();
  for (int site = 0; site < static_cast<int>(model->sites().size()); ++site) {
    const std::string& name = model->sites()[static_cast<size_t>(site)];
    if (!faults.stale(site, at)) continue;
    const TensorView* tensor = file.find("stale." + name + ".weight");
    const std::span<std::byte> room = model->take_stale_weight(site);
    if (tensor != nullptr) {
      GNOMON_ASSERT(static_cast<int64_t>(room.size()) == tensor->bytes());
      memory().write({static_cast<const std::byte*>(tensor->data), room.size()}, room.data());
      continue;
    }
    // A checkpoint of a run without the fault has none: the copy is made of its weights.
    const auto offset = static_cast<size_t>(2 * model->layout().weight_of(name).offset);
    memory().copy(working().kept().subspan(offset, room.size()), room.data());
  }
}

}  // namespace gnomon
