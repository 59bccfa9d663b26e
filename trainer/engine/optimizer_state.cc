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

// Calls `work(moment, place)` for each moment of the optimizer; `place` is its index in arrays by
// Moment.
template <class Work>
void for_moments(OptimizerKind optimizer, const Work& work) {
  for (Moment moment : {Moment::kFirst, Moment::kSecond}) {
    if (optimizer_row(optimizer).has(moment)) work(moment, static_cast<size_t>(moment));
  }
}

std::vector<Column> columns_of(OptimizerKind optimizer, std::span<float> masters,
                               const MomentSpans& moments) {
  std::vector<Column> columns;
  columns.push_back({"master.", "F32", 1, 4, std::as_writable_bytes(masters).data()});
  for_moments(optimizer, [&](Moment moment, size_t place) {
    add_columns(optimizer_row(optimizer).moments[place], moments[place],
                moment == Moment::kFirst ? "F8_E4M3" : "F8_E5M2", columns);
  });
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

OptimizerState::OptimizerState(std::string arena, OptimizerKind optimizer, MomentFormat room,
                               Shard shard, Memory& memory, bool commits)
    : memory_(memory),
      shard_(shard),
      arena_(std::move(arena), memory),
      optimizer_(optimizer),
      room_(room) {
  GNOMON_ASSERT(shard.begin % kMomentBlock == 0 || shard.size() == 0);
  allocate_all();
  if (!commits) return;
  arena_.commit();
  allocate_all();
  MomentFormats formats{.first = room};
  if (optimizer_row(optimizer).has(Moment::kSecond)) formats.second = room;
  set_formats(formats);
}

ArenaSize OptimizerState::measure(std::string arena, OptimizerKind optimizer, MomentFormat room,
                                  int64_t elements) {
  const OptimizerState counted(std::move(arena), optimizer, room, {0, elements}, host_memory(),
                               false);
  return {counted.arena_.name(), counted.arena_.bytes()};
}

void OptimizerState::allocate_all() {
  masters_ = arena_.allocate<float>(shard_.size());
  int64_t bytes = 0;
  for (const MomentFormat format : kMomentFormats) {
    if (format >= room_) bytes = std::max(bytes, moment_bytes_needed(format, shard_.size()));
  }
  for_moments(optimizer_, [&](Moment /*moment*/, size_t place) {
    moment_rooms_[place] = arena_.allocate<std::byte>(bytes);
  });
}

bool OptimizerState::has_room_for(const MomentFormats& formats) const {
  bool enough = true;
  for_moments(optimizer_, [&](Moment moment, size_t /*place*/) {
    enough = enough && formats.of(moment) >= room_;
  });
  return enough;
}

void OptimizerState::set_formats(const MomentFormats& formats) {
  GNOMON_ASSERT(has_room_for(formats));
  forget_sums();
  formats_ = formats;
  for_moments(optimizer_, [&](Moment moment, size_t place) {
    moments_[place] = moments_in(moment_rooms_[place], formats.of(moment), shard_.size());
  });
}

void OptimizerState::change_formats(const MomentFormats& formats, uint64_t seed, int64_t step) {
  GNOMON_ASSERT(has_room_for(formats));
  if (formats == formats_) return;
  std::vector<std::byte> bytes;
  std::vector<float> values(static_cast<size_t>(shard_.size()));
  for_moments(optimizer_, [&](Moment moment, size_t place) {
    const std::span<std::byte> room = moment_rooms_[place];
    const MomentFormat from = formats_.of(moment), to = formats.of(moment);
    if (from == to || room.empty()) return;
    bytes.resize(room.size());
    memory_.read(room, bytes.data());
    decode_moments(moments_in(bytes, from, shard_.size()), moment, values);
    encode_moments(values, moment, seed, step, shard_.begin, moments_in(bytes, to, shard_.size()));
    memory_.write(bytes, room.data());
  });
  set_formats(formats);
}

bool OptimizerState::note_sums(const StateSums& sums) {
  const bool kept = !written_ || *written_ == sums.read;
  written_ = sums.written;
  return kept;
}

void OptimizerState::clear_moments(BackendBase& backend) {
  updates_ = 0;
  forget_sums();
  for_moments(optimizer_,
              [&](Moment /*moment*/, size_t place) { backend.zero(moment_rooms_[place]); });
}

std::vector<TensorView> OptimizerState::views(const ParameterLayout& layout) {
  GNOMON_ASSERT(shard_.begin == 0 && shard_.end == layout.elements());
  return views_of(layout, columns_of(optimizer_, masters_, moments_));
}

std::vector<TensorView> OptimizerState::names(OptimizerKind optimizer,
                                              const ParameterLayout& layout,
                                              const MomentFormats& formats) {
  return views_of(
      layout,
      columns_of(optimizer, {}, {empty_moments(formats.first), empty_moments(formats.second)}));
}

void OptimizerState::load(const SafetensorsFile& file, const ParameterLayout& layout) {
  forget_sums();
  for (const Column& column : columns_of(optimizer_, masters_, moments_)) {
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
  const std::vector<Column> mine = columns_of(optimizer_, masters_, moments_);
  std::vector<Column> whole;
  if (ranks.rank() == 0) {
    GNOMON_ASSERT(all != nullptr);
    all->set_formats(formats_);
    whole = columns_of(all->optimizer_, all->masters_, all->moments_);
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
