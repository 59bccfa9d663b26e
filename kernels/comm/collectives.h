// What the ranks of a data-parallel job say to each other. One interface; transports are a single
// process, MPI, and later NCCL. A transport moves bytes; every sum is made here, in FP32 or FP64
// and in rank order, so that its bits depend on the world size and on nothing else.
//
// All ranks call the same operations in the same order with fitting sizes. A transport that finds
// that a rank is gone, silent for too long, or disagrees ends the whole job with one message on
// stderr: no operation returns on some ranks and hangs on others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "numerics/formats.h"

namespace gnomon {

// Who owns what of `starts.back()` elements: rank r has [starts[r], starts[r + 1]).
struct Partition {
  std::vector<int64_t> starts;

  // Parts as even as possible whose starts are multiples of `grain`.
  static Partition even(int64_t elements, int ranks, int64_t grain);
  int64_t elements() const { return starts.back(); }
  int64_t begin(int rank) const { return starts[static_cast<size_t>(rank)]; }
  int64_t size(int rank) const { return starts[static_cast<size_t>(rank) + 1] - begin(rank); }
  template <class T>
  std::span<T> of(std::span<T> all, int rank) const {
    return all.subspan(static_cast<size_t>(begin(rank)), static_cast<size_t>(size(rank)));
  }
};

class Collectives {
 public:
  virtual ~Collectives() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;  // "single", "mpi"

  // ---- what a transport does ----
  // Sends to[r] to each other rank r and receives from[r] from it, all at once. to[rank()] and
  // from[rank()] are left alone. to[r] here and from[rank()] there are equally long.
  virtual void exchange(std::span<const std::span<const std::byte>> to,
                        std::span<const std::span<std::byte>> from) = 0;
  virtual void broadcast(std::span<std::byte> data, int root) = 0;
  virtual void barrier() = 0;
  // The next broadcast may be long in coming: waits for it without the transport's time limit and
  // without using a core. On ranks other than its root; the root calls nothing.
  virtual void expect_pause() = 0;
  // Ends the job on all ranks with a status that is not 0, after writing `message`.
  [[noreturn]] virtual void abort(const std::string& message) = 0;

  // ---- made of these ----
  // Every rank gets every part.
  void all_gather_bytes(std::span<std::byte> all, const Partition& bytes);
  // Only `root` gets them: `all` has every part there, and nothing need be behind it elsewhere.
  // `mine` is the caller's part, at the root too.
  void gather_bytes(std::span<const std::byte> mine, std::span<std::byte> all,
                    const Partition& bytes, int root);
  template <class T>
  void all_gather(std::span<T> all, const Partition& parts) {
    all_gather_bytes(std::as_writable_bytes(all), in_bytes(parts, sizeof(T)));
  }
  // The caller's part of `all` becomes the sum over ranks, in rank order and in FP32; the other
  // parts are left as they are.
  void reduce_scatter(std::span<float> all, const Partition& parts);
  // Each element becomes the sum over ranks, in rank order; or the largest, NaN being larger than
  // all. Meant for few elements: every rank gets all of them.
  void all_reduce_sum(std::span<double> values);
  void all_reduce_max(std::span<double> values);
  void broadcast_text(std::string& text, int root);
  // Throws Error on every rank unless all pass the same `value`, naming `what` and the ranks that
  // differ from rank 0.
  void agree(const std::string& what, const std::string& value);
  // Throws Error on every rank if `error` is not empty on some, with the texts of those; a rank
  // alone throws its own.
  void agree_on_success(const std::string& error);

  static Partition in_bytes(const Partition& parts, size_t element);

 private:
  std::vector<std::string> all_texts(const std::string& mine);

  std::vector<float> pieces_;  // what reduce_scatter receives, a bounded part at a time
  std::vector<float> sum_;
};

// One process: nothing is sent.
std::unique_ptr<Collectives> make_single_collectives();

}  // namespace gnomon
