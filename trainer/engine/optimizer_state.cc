#include "trainer/engine/optimizer_state.h"

#include <algorithm>

#include "base/errors.h"

namespace gnomon {
namespace {

// One run of bytes that follows the flat numbering: `grain` elements for each entry.
struct Column {
  std::string prefix;  // of the parameters' names; the whole name where grain is not 1
  const char* dtype = "";
  int64_t grain = 1;
  int64_t bytes = 0;          // of an entry
  std::byte* data = nullptr;  // of the shard's first entry; null in names()
  int64_t entries(int64_t elements) const { return (elements + grain - 1) / grain; }
};

void add_columns(const std::string& name, const MomentSpan& moments, const char* fp8_dtype,
                 std::vector<Column>& columns) {
  auto bytes_of = [](auto values) { return std::as_writable_bytes(values).data(); };
  if (const Fp8Moments* fp8 = std::get_if<Fp8Moments>(&moments)) {
    columns.push_back({name + ".", fp8_dtype, 1, 1, bytes_of(fp8->codes)});
    columns.push_back({name + "_scales", "F32", kMomentBlock, 4, bytes_of(fp8->scales)});
  } else if (const auto* values = std::get_if<std::span<bf16>>(&moments)) {
    columns.push_back({name + ".", "BF16", 1, 2, bytes_of(*values)});
  } else {
    columns.push_back({name + ".", "F32", 1, 4, bytes_of(std::get<std::span<float>>(moments))});
  }
}

std::vector<Column> columns_of(std::span<float> masters, const MomentSpan& first,
                               const MomentSpan& second) {
  std::vector<Column> columns;
  columns.push_back({"master.", "F32", 1, 4, std::as_writable_bytes(masters).data()});
  add_columns("exp_avg", first, "F8_E4M3", columns);
  add_columns("exp_avg_sq", second, "F8_E5M2", columns);
  return columns;
}

std::vector<TensorView> views_of(const ParameterLayout& layout,
                                 const std::vector<Column>& columns) {
  std::vector<TensorView> views;
  for (const Column& column : columns) {
    if (column.grain != 1) {
      views.push_back(
          {column.prefix, column.dtype, {column.entries(layout.elements())}, column.data});
      continue;
    }
    for (const Parameter& parameter : layout.all()) {
      const std::byte* data =
          column.data == nullptr ? nullptr : column.data + parameter.offset * column.bytes;
      views.push_back({column.prefix + parameter.name, column.dtype, parameter.shape, data});
    }
  }
  return views;
}

MomentSpan empty_moments(MomentFormat format) {
  if (format == MomentFormat::kFp8) return Fp8Moments{};
  if (format == MomentFormat::kBf16) return std::span<bf16>{};
  return std::span<float>{};
}

}  // namespace

OptimizerState::OptimizerState(std::string arena, MomentFormat room, Shard shard, Memory& memory,
                               bool commits)
    : memory_(memory), shard_(shard), arena_(std::move(arena), memory), room_(room) {
  GNOMON_ASSERT(shard.begin % kMomentBlock == 0 || shard.size() == 0);
  take_all();
  if (!commits) return;
  arena_.commit();
  take_all();
  set_formats({room, room});
}

ArenaSize OptimizerState::measure(std::string arena, MomentFormat room, int64_t elements) {
  const OptimizerState counted(std::move(arena), room, {0, elements}, host_memory(), false);
  return {counted.arena_.name(), counted.arena_.bytes()};
}

void OptimizerState::take_all() {
  masters_ = arena_.take<float>(shard_.size());
  int64_t bytes = 0;
  for (const MomentFormat format : kMomentFormats) {
    if (format >= room_) bytes = std::max(bytes, moment_bytes_needed(format, shard_.size()));
  }
  first_room_ = arena_.take<std::byte>(bytes);
  second_room_ = arena_.take<std::byte>(bytes);
}

bool OptimizerState::has_room_for(const MomentFormats& formats) const {
  return formats.first >= room_ && formats.second >= room_;
}

void OptimizerState::set_formats(const MomentFormats& formats) {
  GNOMON_ASSERT(has_room_for(formats));
  formats_ = formats;
  first_moments_ = moments_in(first_room_, formats.first, shard_.size());
  second_moments_ = moments_in(second_room_, formats.second, shard_.size());
}

void OptimizerState::change_formats(const MomentFormats& formats, uint64_t seed, int64_t step) {
  GNOMON_ASSERT(has_room_for(formats));
  if (formats == formats_) return;
  std::vector<std::byte> bytes(first_room_.size());
  std::vector<float> values(static_cast<size_t>(shard_.size()));
  const auto change = [&](Moment moment, std::span<std::byte> room, MomentFormat from,
                          MomentFormat to) {
    if (from == to || room.empty()) return;
    memory_.read(room, bytes.data());
    decode_moments(moments_in(bytes, from, shard_.size()), moment, values);
    encode_moments(values, moment, seed, step, shard_.begin, moments_in(bytes, to, shard_.size()));
    memory_.write(bytes, room.data());
  };
  change(Moment::kFirst, first_room_, formats_.first, formats.first);
  change(Moment::kSecond, second_room_, formats_.second, formats.second);
  set_formats(formats);
}

void OptimizerState::clear_moments(BackendBase& backend) {
  updates_ = 0;
  backend.zero(first_room_);
  backend.zero(second_room_);
}

std::vector<TensorView> OptimizerState::views(const ParameterLayout& layout) {
  GNOMON_ASSERT(shard_.begin == 0 && shard_.end == layout.elements());
  return views_of(layout, columns_of(masters_, first_moments_, second_moments_));
}

std::vector<TensorView> OptimizerState::names(const ParameterLayout& layout,
                                              const MomentFormats& formats) {
  return views_of(layout,
                  columns_of({}, empty_moments(formats.first), empty_moments(formats.second)));
}

void OptimizerState::take(const SafetensorsFile& file, const ParameterLayout& layout) {
  for (const Column& column : columns_of(masters_, first_moments_, second_moments_)) {
    auto copy = [&](const std::string& name, int64_t offset, int64_t size) {
      const int64_t begin = std::max(offset, shard_.begin);
      const int64_t end = std::min(offset + size, shard_.end);
      if (begin >= end) return;
      const auto* data = static_cast<const std::byte*>(file.find(name)->data);
      memory_.write({data + (begin - offset) / column.grain * column.bytes,
                     static_cast<size_t>(column.entries(end - begin) * column.bytes)},
                    column.data + (begin - shard_.begin) / column.grain * column.bytes);
    };
    if (column.grain != 1) {
      copy(column.prefix, 0, layout.elements());
      continue;
    }
    for (const Parameter& parameter : layout.all()) {
      copy(column.prefix + parameter.name, parameter.offset, parameter.size);
    }
  }
}

void OptimizerState::gather(Collectives& ranks, const Partition& parts, OptimizerState* all) {
  const std::vector<Column> mine = columns_of(masters_, first_moments_, second_moments_);
  std::vector<Column> whole;
  if (ranks.rank() == 0) {
    GNOMON_ASSERT(all != nullptr);
    all->set_formats(formats_);
    whole = columns_of(all->masters_, all->first_moments_, all->second_moments_);
  }
  for (size_t i = 0; i < mine.size(); ++i) {
    const Column& column = mine[i];
    Partition bytes;
    for (int64_t start : parts.starts) bytes.starts.push_back(column.entries(start) * column.bytes);
    std::span<std::byte> room;
    if (ranks.rank() == 0) room = {whole[i].data, static_cast<size_t>(bytes.elements())};
    const HostView<std::byte> own(
        memory_, std::span(column.data, static_cast<size_t>(bytes.size(ranks.rank()))));
    ranks.gather_bytes(own.get(), room, bytes, 0);
  }
}

}  // namespace gnomon
