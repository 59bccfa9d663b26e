// An arena is taken once at start and handed out in aligned pieces; nothing is allocated later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/memory.h"
#include "numerics/formats.h"

namespace gnomon {

// Two passes over the same code: first an arena without memory counts (reserve), then commit()
// takes the memory and the same calls hand it out.
class Arena {
 public:
  // `memory` must outlive this.
  explicit Arena(std::string name, Memory& memory = host_memory())
      : name_(std::move(name)), source_(memory) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // While counting returns an empty-memory span (data() == nullptr) of the right size.
  template <typename T>
  std::span<T> allocate(int64_t count) {
    return {static_cast<T*>(allocate_bytes(count * static_cast<int64_t>(sizeof(T)))),
            static_cast<size_t>(count)};
  }
  // Ends counting and takes the memory, zeroed. Throws Error with the size when there is not
  // enough.
  void commit();

  const std::string& name() const { return name_; }
  int64_t bytes() const { return counting_ ? used_ : capacity_; }
  // All of it, once it is committed.
  std::span<std::byte> content() {
    return {memory_, static_cast<size_t>(counting_ ? 0 : capacity_)};
  }

 private:
  void* allocate_bytes(int64_t bytes);

  std::string name_;
  Memory& source_;
  bool counting_ = true;
  int64_t used_ = 0;
  int64_t capacity_ = 0;
  std::byte* memory_ = nullptr;
};

struct ArenaSize {
  std::string name;  // "weights", "optimizer", "activations", ...
  int64_t bytes = 0;
};

}  // namespace gnomon
