#include "kernels/comm/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/errors.h"

namespace gnomon {
namespace {

// Elements exchanged at a time of each rank's part: 4 MiB from every other rank.
constexpr int64_t kElementsAtOnce = 1 << 20;

class SingleCollectives final : public Collectives {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return "single"; }
  void exchange(std::span<const std::span<const std::byte>>,
                std::span<const std::span<std::byte>>) override {}
  void broadcast(std::span<std::byte>, int) override {}
  void barrier() override {}
  void expect_pause() override {}
  [[noreturn]] void abort(const std::string& message) override {
    std::fprintf(stderr, "%s\n", message.c_str());
    std::_Exit(1);
  }
};

}  // namespace

std::unique_ptr<Collectives> make_single_collectives() {
  return std::make_unique<SingleCollectives>();
}

Partition Partition::even(int64_t elements, int ranks, int64_t grain) {
  GNOMON_ASSERT(elements >= 0 && ranks >= 1 && grain >= 1);
  Partition partition;
  int64_t grains = (elements + grain - 1) / grain;
  for (int rank = 0; rank <= ranks; ++rank) {
    partition.starts.push_back(std::min(grains * rank / ranks * grain, elements));
  }
  return partition;
}

Partition Collectives::in_bytes(const Partition& parts, size_t element) {
  Partition bytes = parts;
  for (int64_t& start : bytes.starts) start *= static_cast<int64_t>(element);
  return bytes;
}

void Collectives::all_gather_bytes(std::span<std::byte> all, const Partition& bytes) {
  GNOMON_ASSERT(std::ssize(bytes.starts) == size() + 1 && std::ssize(all) == bytes.elements());
  std::vector<std::span<const std::byte>> to;
  std::vector<std::span<std::byte>> from;
  for (int other = 0; other < size(); ++other) {
    to.push_back(bytes.of(all, rank()));
    from.push_back(bytes.of(all, other));
  }
  exchange(to, from);
}

void Collectives::gather_bytes(std::span<const std::byte> mine, std::span<std::byte> all,
                               const Partition& bytes, int root) {
  GNOMON_ASSERT(std::ssize(bytes.starts) == size() + 1 && std::ssize(mine) == bytes.size(rank()));
  std::vector<std::span<const std::byte>> to(static_cast<size_t>(size()));
  std::vector<std::span<std::byte>> from(static_cast<size_t>(size()));
  if (rank() == root) {
    GNOMON_ASSERT(std::ssize(all) == bytes.elements());
    for (int other = 0; other < size(); ++other) {
      if (other != root) from[static_cast<size_t>(other)] = bytes.of(all, other);
    }
    std::span<std::byte> own = bytes.of(all, root);
    if (!mine.empty()) std::memmove(own.data(), mine.data(), mine.size());
  } else {
    to[static_cast<size_t>(root)] = mine;
  }
  exchange(to, from);
}

void Collectives::reduce_scatter(std::span<float> all, const Partition& parts) {
  GNOMON_ASSERT(std::ssize(parts.starts) == size() + 1 && std::ssize(all) == parts.elements());
  if (size() == 1) return;
  int64_t longest = 0;
  for (int other = 0; other < size(); ++other) longest = std::max(longest, parts.size(other));
  const size_t most = static_cast<size_t>(std::min(longest, kElementsAtOnce));
  if (pieces_.size() < most * static_cast<size_t>(size())) {
    pieces_.resize(most * static_cast<size_t>(size()));
    sum_.resize(most);
  }
  const std::span<float> mine = parts.of(all, rank());
  for (int64_t at = 0; at < longest; at += kElementsAtOnce) {
    auto piece_of = [&](std::span<float> part) {
      const int64_t left = std::max<int64_t>(std::ssize(part) - at, 0);
      return left == 0 ? std::span<float>{}
                       : part.subspan(static_cast<size_t>(at),
                                      static_cast<size_t>(std::min(left, kElementsAtOnce)));
    };
    const std::span<float> own = piece_of(mine);
    std::vector<std::span<const std::byte>> to;
    std::vector<std::span<std::byte>> from;
    std::vector<std::span<const float>> terms;
    for (int other = 0; other < size(); ++other) {
      to.push_back(std::as_bytes(piece_of(parts.of(all, other))));
      std::span<float> room(pieces_.data() + most * static_cast<size_t>(other), own.size());
      from.push_back(std::as_writable_bytes(room));
      terms.push_back(other == rank() ? own : room);
    }
    exchange(to, from);
    std::ranges::copy(terms[0], sum_.begin());
    for (size_t term = 1; term < terms.size(); ++term) {
      const float* values = terms[term].data();
      for (size_t i = 0; i < own.size(); ++i) sum_[i] += values[i];
    }
    std::copy_n(sum_.begin(), own.size(), own.begin());
  }
}

namespace {

// values[rank·count + i], of every rank.
std::vector<double> all_values(Collectives& ranks, std::span<const double> mine) {
  const int64_t count = std::ssize(mine);
  std::vector<double> all(static_cast<size_t>(count * ranks.size()));
  std::ranges::copy(mine, all.begin() + count * ranks.rank());
  ranks.all_gather(std::span(all), Partition::even(std::ssize(all), ranks.size(), count));
  return all;
}

}  // namespace

void Collectives::all_reduce_sum(std::span<double> values) {
  if (size() == 1 || values.empty()) return;
  const std::vector<double> all = all_values(*this, values);
  for (size_t i = 0; i < values.size(); ++i) {
    double sum = all[i];
    for (size_t at = i + values.size(); at < all.size(); at += values.size()) sum += all[at];
    values[i] = sum;
  }
}

void Collectives::all_reduce_max(std::span<double> values) {
  if (size() == 1 || values.empty()) return;
  const std::vector<double> all = all_values(*this, values);
  for (size_t i = 0; i < values.size(); ++i) {
    double largest = all[i];
    for (size_t at = i; at < all.size(); at += values.size()) {
      if (std::isnan(all[at]) || all[at] > largest) largest = all[at];
      if (std::isnan(largest)) break;
    }
    values[i] = largest;
  }
}

void Collectives::broadcast_text(std::string& text, int root) {
  int64_t length = std::ssize(text);
  broadcast(std::as_writable_bytes(std::span(&length, 1)), root);
  text.resize(static_cast<size_t>(length));
  if (length > 0) broadcast(std::as_writable_bytes(std::span(text)), root);
}

std::vector<std::string> Collectives::all_texts(const std::string& mine) {
  std::vector<std::string> texts(static_cast<size_t>(size()));
  for (int root = 0; root < size(); ++root) {
    std::string& text = texts[static_cast<size_t>(root)];
    if (root == rank()) text = mine;
    broadcast_text(text, root);
  }
  return texts;
}

void Collectives::agree(const std::string& what, const std::string& value) {
  if (size() == 1) return;
  const std::vector<std::string> values = all_texts(value);
  std::string others;
  for (int other = 1; other < size(); ++other) {
    const std::string& theirs = values[static_cast<size_t>(other)];
    if (theirs != values[0]) others += fmt::format(", on rank {} {}", other, theirs);
  }
  if (!others.empty()) {
    throw Error(fmt::format("the ranks disagree on {}: on rank 0 {}{}", what, values[0], others));
  }
}

void Collectives::agree_on_success(const std::string& error) {
  if (size() == 1) {
    if (!error.empty()) throw Error(error);
    return;
  }
  double failed = error.empty() ? 0 : 1;
  all_reduce_max(std::span(&failed, 1));
  if (failed == 0) return;
  std::string all;
  const std::vector<std::string> errors = all_texts(error);
  for (int other = 0; other < size(); ++other) {
    const std::string& text = errors[static_cast<size_t>(other)];
    if (text.empty()) continue;
    all += fmt::format("{}rank {}: {}", all.empty() ? "" : "; ", other, text);
  }
  throw Error(all);
}

}  // namespace gnomon
