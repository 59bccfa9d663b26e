// What faults do to the state of an engine: weights, moments, stale copies. Those of tensors act
// where they are computed (linear.cc, scaling.cc).
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/errors.h"
#include "kernels/moment_codes.h"
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

// Codes of second moments whose values went through the rounding first, to nearest: small ones
// become zero. `first` is the number of the first among the moments that `scales` are of.
void spoil_codes(const MomentRounding& rounding, double amax, std::span<const float> scales,
                 int64_t first, std::span<uint8_t> codes) {
  const float factor =
      std::ldexp(tile_scale(ScaleRule::kFp32, rounding.format, static_cast<float>(amax)),
                 rounding.log2_factor);
  for (size_t i = 0; i < codes.size(); ++i) {
    const float scale =
        scales[static_cast<size_t>((first + static_cast<int64_t>(i)) / kMomentBlock)];
    const float value = decode(Format::kE5m2, codes[i]) * scale;
    const float spoilt = round_to(rounding.format, value * factor) / factor;
    codes[i] = static_cast<uint8_t>(encode(Format::kE5m2, spoilt / scale));
  }
}

// What a scale that is off leaves of values with one scale: small ones are lost, or large ones are
// cut off.
template <class Codes>
void send_off_scale(Format format, int log2_factor, std::span<float> values) {
  float amax = 0;
  for (float value : values) amax = std::max(amax, std::fabs(value));
  if (amax == 0 || !std::isfinite(amax)) return;
  const float scale = std::ldexp(moment_scale<Codes>(amax), log2_factor);
  for (float& value : values) value = round_to(format, value / scale) * scale;
}

void strike_weight(EngineImpl& self, const Fault& fault) {
  const int64_t element = struck_parameter(fault, self.model->layout()).offset + fault.element;
  const Shard& shard = self.optimizer->shard();
  int owner = 0;
  while (self.parts.begin(owner) + self.parts.size(owner) <= element) ++owner;
  float value = 0;
  if (owner == self.collectives.rank()) {
    const auto at = static_cast<size_t>(element - shard.begin);
    edit_on_host(self.memory(), self.optimizer->masters().subspan(at, 1),
                 [&](std::span<float> master) { value = master[0] = with_bit(fault, master[0]); });
  }
  self.collectives.broadcast(std::as_writable_bytes(std::span(&value, 1)), owner);
  self.working().set(std::span(&value, 1), element);
}

}  // namespace

// A stale copy would be one of a weight that this rank has only while its layer's pass is at it.
void check_faults_of_shards(const EngineConfig& config) {
  for (const Fault& fault : config.faults) {
    if (fault.kind != FaultKind::kStaleWeight) continue;
    throw ConfigError(
        "ranks", 0, "shard", sharding_name(config.shard),
        fmt::format("\"{}\" for a run with the fault {}", sharding_name(Sharding::kOptimizer),
                    fault_kind_name(fault.kind)));
  }
}

// One fault strikes one computation of its step; several of one step strike one each, in their
// order.
void flip_gradient(EngineImpl& self, int64_t at) {
  for (const Fault* fault : self.faults.flipped_gradients(at)) {
    if (!self.flipped.insert(fault).second) continue;
    const int64_t element = struck_parameter(*fault, self.model->layout()).offset + fault->element;
    if (self.parts.begin(self.collectives.rank()) <= element &&
        element <
            self.parts.begin(self.collectives.rank()) + self.parts.size(self.collectives.rank())) {
      edit_on_host(self.memory(), self.model->gradients().subspan(static_cast<size_t>(element), 1),
                   [&](std::span<float> value) { value[0] = with_bit(*fault, value[0]); });
    }
    return;
  }
}

void strike_weights(EngineImpl& self) {
  for (const Fault* fault : self.faults.struck_weights(self.step)) {
    if (fault->kind == FaultKind::kBitFlip && !self.flipped.insert(fault).second) continue;
    strike_weight(self, *fault);
  }
}

void spoil_second_moments(EngineImpl& self, int64_t at) {
  if (self.formats.moments.second != MomentFormat::kFp8) return;
  const auto& moments =
      std::get<Fp8Moments>(self.optimizer->moments()[static_cast<size_t>(Moment::kSecond)]);
  const Shard& shard = self.optimizer->shard();
  struct Part {
    MomentRounding how;
    int64_t begin, end;  // of the shard's moments
  };
  std::vector<Part> spoilt;
  for (size_t site = 0; site < self.model->sites().size(); ++site) {
    const std::optional<MomentRounding> how = self.faults.second_moment(static_cast<int>(site), at);
    if (!how) continue;
    const Parameter& weight = self.model->layout().weight_of(self.model->sites()[site]);
    const int64_t begin = std::clamp(weight.offset, shard.begin, shard.end) - shard.begin;
    const int64_t end =
        std::clamp(weight.offset + weight.size, shard.begin, shard.end) - shard.begin;
    spoilt.push_back({*how, begin, end});
  }
  if (spoilt.empty()) return;
  self.optimizer->state().forget_sums();
  const HostView<float> scales(self.memory(), moments.scales);
  const HostView<uint8_t> codes(self.memory(), moments.codes);
  std::vector<double> amaxes;
  for (const Part& part : spoilt) {
    double amax = 0;
    for (int64_t i = part.begin; i < part.end; ++i) {
      const float value = decode(Format::kE5m2, codes[static_cast<size_t>(i)]) *
                          scales[static_cast<size_t>(i / kMomentBlock)];
      amax = std::max(amax, static_cast<double>(value));
    }
    amaxes.push_back(amax);
  }
  self.collectives.all_reduce_max(amaxes);
  for (size_t i = 0; i < spoilt.size(); ++i) {
    const auto [how, begin, end] = spoilt[i];
    const auto part =
        moments.codes.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    edit_on_host(self.memory(), part, [&](std::span<uint8_t> of_part) {
      spoil_codes(how, amaxes[i], scales.get(), begin, of_part);
    });
  }
}

// The step's gradients of this rank before they are sent in FP8, as the wrong scales leave them:
// the right ones then change nothing more.
void spoil_gradients(EngineImpl& self, int64_t at) {
  const int log2_factor = self.faults.wire_shift(at);
  if (log2_factor == 0 || self.formats.gradients.wire == Wire::kFull) return;
  edit_on_host(self.memory(), self.model->gradients(), [&](std::span<float> all) {
    for (size_t begin = 0; begin < all.size(); begin += WireLayout::kBlock) {
      const auto block =
          all.subspan(begin, std::min<size_t>(WireLayout::kBlock, all.size() - begin));
      if (self.formats.gradients.wire == Wire::kE4m3) {
        send_off_scale<E4m3Codes>(Format::kE4m3, log2_factor, block);
      } else {
        send_off_scale<E5m2Codes>(Format::kE5m2, log2_factor, block);
      }
    }
  });
}

std::vector<TensorView> stale_weights(const EngineImpl& self, const FaultView& of, int64_t at) {
  std::vector<TensorView> views;
  for (int site = 0; site < static_cast<int>(self.model->sites().size()); ++site) {
    if (!of.stale(site, at)) continue;
    const std::string& name = self.model->sites()[static_cast<size_t>(site)];
    views.push_back({"stale." + name + ".weight", "BF16",
                     self.model->layout().weight_of(name).shape,
                     self.model->stale_weight(site, at).data()});
  }
  return views;
}

void load_stale_weights(EngineImpl& self, const SafetensorsFile& file, int64_t at) {
  self.model->forget_stale_weights();
  for (int site = 0; site < static_cast<int>(self.model->sites().size()); ++site) {
    const std::string& name = self.model->sites()[static_cast<size_t>(site)];
    if (!self.faults.stale(site, at)) continue;
    const TensorView* tensor = file.find("stale." + name + ".weight");
    const std::span<std::byte> room = self.model->allocate_stale_weight(site);
    if (tensor != nullptr) {
      GNOMON_ASSERT(static_cast<int64_t>(room.size()) == tensor->bytes());
      self.memory().write({static_cast<const std::byte*>(tensor->data), room.size()}, room.data());
      continue;
    }
    // A checkpoint of a run without the fault has none: the copy is made of its weights.
    const auto offset = static_cast<size_t>(2 * self.model->layout().weight_of(name).offset);
    self.memory().copy(self.working().kept().subspan(offset, room.size()), room.data());
  }
}

}  // namespace gnomon
