// The CPU's backend as if it were a device: its memory cannot be touched but while an operation
// runs, and an operation takes nothing that lies elsewhere. What an engine does with it, it does
// with a device's.
#pragma once

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "tests/engine/forwarding_backend.h"

namespace gnomon::test {

class GuardedMemory final : public Memory {
 public:
  std::byte* allocate(int64_t bytes, const std::string&) override {
    void* memory =
        mmap(nullptr, static_cast<size_t>(bytes), protection_, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    auto* begin = static_cast<std::byte*>(memory);
    regions_[begin] = bytes;
    return begin;
  }
  void give_back(std::byte* memory, int64_t bytes) noexcept override {
    regions_.erase(memory);
    munmap(memory, static_cast<size_t>(bytes));
  }
  bool on_host() const override { return false; }
  void read(std::span<const std::byte> from, std::byte* to_host) override {
    unlock();
    std::memcpy(to_host, from.data(), from.size());
    lock();
  }
  void write(std::span<const std::byte> from_host, std::byte* to) override { read(from_host, to); }
  void copy(std::span<const std::byte> from, std::byte* to) override { read(from, to); }
  std::byte* allocate_host_room(int64_t bytes, const std::string& purpose) override {
    return host_memory().allocate(bytes, purpose);
  }
  void give_back_host_room(std::byte* room, int64_t bytes) noexcept override {
    host_memory().give_back(room, bytes);
  }
  std::unique_ptr<CopyOut> start_copy_out(std::span<const Piece> pieces) override {
    unlock();
    auto copies = host_memory().start_copy_out(pieces);
    lock();
    return copies;
  }
  void settle() override {}

  void unlock() { protect(PROT_READ | PROT_WRITE); }
  void lock() { protect(PROT_NONE); }
  // Null is as good as anywhere.
  bool holds(const void* address) const {
    if (address == nullptr) return true;
    const auto* at = static_cast<const std::byte*>(address);
    auto after = regions_.upper_bound(const_cast<std::byte*>(at));
    if (after == regions_.begin()) return false;
    --after;
    return at < after->first + after->second;
  }

 private:
  void protect(int how) {
    protection_ = how;
    for (const auto& [begin, bytes] : regions_) {
      if (mprotect(begin, static_cast<size_t>(bytes), how) != 0) std::abort();
    }
  }

  std::map<std::byte*, int64_t> regions_;
  int protection_ = PROT_NONE;
};

template <class E>
class GuardedBackend : public ForwardingBackend<E> {
 public:
  using ForwardingBackend<E>::ForwardingBackend;
  Memory& memory() override { return memory_; }

 protected:
  void enter(std::initializer_list<const void*> addresses) override {
    for (const void* address : addresses) {
      if (!memory_.holds(address)) std::abort();  // a device would fail here
    }
    memory_.unlock();
  }
  void leave() override { memory_.lock(); }

 private:
  GuardedMemory memory_;
};

}  // namespace gnomon::test
