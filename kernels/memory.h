// Where tensors lie: in the host's memory or a device's, and the copies between the two. What lies
// in a device's memory is for the operations of its backend; the host comes to it by HostView,
// edit_on_host() and write_from_host() alone. Where the memory is the host's own these cost
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gnomon {

// In bytes.
struct MemoryLeft {
  int64_t free = 0;
  int64_t total = 0;
};

// Copies to the host that go on while operations do.
class CopyOut {
 public:
  virtual ~CopyOut() = default;
  // Until they are done. On any thread. Throws Error when they could not be made.
  virtual void wait() = 0;
};

class Memory {
 public:
  static constexpr int64_t kAlignment = 256;  // of what allocate() gives, in bytes

  virtual ~Memory() = default;

  // Zeroed, for `purpose`, a few words. Throws Error with purpose and sizes when there is not
  // enough. bytes > 0.
  virtual std::byte* allocate(int64_t bytes, const std::string& purpose) = 0;
  virtual void give_back(std::byte* memory, int64_t bytes) noexcept = 0;
  // True when the host may use its addresses.
  virtual bool on_host() const = 0;
  // How often memory was given back: recorded work with addresses from before is not to be
  // repeated. Counted where work is recorded.
  virtual uint64_t given_back() const { return 0; }
  // What can still be taken; nothing where that cannot be said.
  virtual std::optional<MemoryLeft> left() { return std::nullopt; }

  // Copies that come after all operations called before; those from and to the host are done when
  // they return. The host's side may be any memory of the host.
  virtual void read(std::span<const std::byte> from, std::byte* to_host) = 0;
  virtual void write(std::span<const std::byte> from_host, std::byte* to) = 0;
  // Within this memory. The two do not overlap.
  virtual void copy(std::span<const std::byte> from, std::byte* to) = 0;

  // ---- copies to the host beside the operations ----
  // Memory of the host that such copies are fast to. Throws as allocate() does. bytes > 0.
  virtual std::byte* allocate_host_room(int64_t bytes, const std::string& purpose) = 0;
  virtual void give_back_host_room(std::byte* room, int64_t bytes) noexcept = 0;
  struct Piece {
    std::span<const std::byte> from;  // of this memory, or of the host
    std::byte* to = nullptr;          // in a host room
  };
  // Copies the pieces as the operations called before leave them. Operations and write()s that
  // change a piece before the copies are done must come after settle().
  virtual std::unique_ptr<CopyOut> start_copy_out(std::span<const Piece> pieces) = 0;
  // Operations called from now on come after all copies that were started.
  virtual void settle() = 0;
};

// A host room that is given back with the object.
class HostRoom {
 public:
  HostRoom(Memory& memory, int64_t bytes, const std::string& purpose)
      : memory_(memory),
        bytes_(bytes),
        data_(bytes == 0 ? nullptr : memory.allocate_host_room(bytes, purpose)) {}
  ~HostRoom() {
    if (data_ != nullptr) memory_.give_back_host_room(data_, bytes_);
  }
  HostRoom(const HostRoom&) = delete;
  HostRoom& operator=(const HostRoom&) = delete;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  Memory& memory_;
  int64_t bytes_;
  std::byte* data_;
};

// Ordinary memory, in huge pages where the system gives them.
Memory& host_memory();

// The content of a span of some memory, for the host to read.
template <class T>
class HostView {
 public:
  HostView(Memory& memory, std::span<const T> content) : view_(content) {
    if (memory.on_host() || content.empty()) return;
    copy_.resize(content.size());
    memory.read(std::as_bytes(content), reinterpret_cast<std::byte*>(copy_.data()));
    view_ = copy_;
  }
  HostView(Memory& memory, std::span<T> content) : HostView(memory, std::span<const T>(content)) {}
  HostView(const HostView&) = delete;
  HostView& operator=(const HostView&) = delete;

  std::span<const T> get() const { return view_; }
  const T* begin() const { return view_.data(); }
  const T* end() const { return view_.data() + view_.size(); }
  const T& operator[](size_t i) const { return view_[i]; }

 private:
  std::vector<T> copy_;
  std::span<const T> view_;
};

template <class T>
void write_from_host(Memory& memory, std::span<const T> from, std::span<T> to) {
  if (!from.empty()) memory.write(std::as_bytes(from), std::as_writable_bytes(to).data());
}

// Lets `fill` (a function of std::span<T>) write all of the content on the host.
template <class T, class Fill>
void fill_on_host(Memory& memory, std::span<T> content, Fill&& fill) {
  if (memory.on_host()) return fill(content);
  std::vector<T> room(content.size());
  fill(std::span<T>(room));
  write_from_host(memory, std::span<const T>(room), content);
}

// Lets `change` (a function of std::span<T>) have the content on the host, and puts it back.
template <class T, class Change>
void edit_on_host(Memory& memory, std::span<T> content, Change&& change) {
  if (memory.on_host()) return change(content);
  const HostView<T> view(memory, content);
  std::vector<T> copy(view.begin(), view.end());
  change(std::span<T>(copy));
  write_from_host(memory, std::span<const T>(copy), content);
}

// Elements in some memory, for what is taken after the start: faults, analyses. Where it grows its
// content is lost.
template <class T>
class Buffer {
 public:
  Buffer() = default;  // of no memory, to be assigned to
  // `memory` must outlive this.
  explicit Buffer(Memory& memory) : memory_(&memory) {}
  ~Buffer() { release(); }
  Buffer(Buffer&& other) noexcept
      : memory_(other.memory_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  // The first `count` elements of it.
  std::span<T> at_least(int64_t count) {
    if (count > size_) {
      release();
      data_ = reinterpret_cast<T*>(
          memory_->allocate(count * static_cast<int64_t>(sizeof(T)),
                            "room for a fault, an analysis or the scales of tiles"));
      size_ = count;
    }
    return {data_, static_cast<size_t>(count)};
  }
  T* data() const { return data_; }
  std::span<const T> all() const { return {data_, static_cast<size_t>(size_)}; }
  std::span<T> all() { return {data_, static_cast<size_t>(size_)}; }
  // As large as `content` and filled with it, which lies in the same memory.
  std::span<T> copy_of(std::span<const T> content) {
    const std::span<T> all = at_least(std::ssize(content));
    if (!content.empty()) {
      memory_->copy(std::as_bytes(content), std::as_writable_bytes(all).data());
    }
    return all;
  }

 private:
  void release() {
    if (data_ == nullptr) return;
    memory_->give_back(reinterpret_cast<std::byte*>(data_),
                       size_ * static_cast<int64_t>(sizeof(T)));
    data_ = nullptr;
    size_ = 0;
  }

  Memory* memory_ = nullptr;
  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace gnomon
