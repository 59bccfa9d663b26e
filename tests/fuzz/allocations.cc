#include "tests/fuzz/allocations.h"

#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <new>

namespace gnomon::fuzz {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

struct Held {
  int64_t limit = kUnlimited;
  int64_t now = 0;  // since the limit was set; negative when older memory was given back
  int64_t most = 0;
};

constinit thread_local Held held;

// Refuses before the memory is taken: what a reader asks for by mistake may be more than there is.
void check(size_t bytes) {
  if (held.limit == kUnlimited) return;
  const int64_t room = held.limit - held.now;
  if (room >= 0 && bytes <= static_cast<size_t>(room)) return;
  const int64_t limit = held.limit;
  held.limit = kUnlimited;
  std::fprintf(stderr, "fuzz: %zu bytes asked for, beside %lld held; at most %lld in all\n", bytes,
               static_cast<long long>(held.now), static_cast<long long>(limit));
  std::abort();
}

void* counted(void* memory) {
  if (memory == nullptr || held.limit == kUnlimited) return memory;
  held.now += static_cast<int64_t>(::malloc_usable_size(memory));
  held.most = std::max(held.most, held.now);
  return memory;
}

void* allocate(size_t bytes) {
  check(bytes);
  return counted(std::malloc(std::max<size_t>(bytes, 1)));
}

void* allocate(size_t bytes, std::align_val_t alignment) {
  check(bytes);
  const auto multiple = static_cast<size_t>(alignment);
  return counted(std::aligned_alloc(multiple, (bytes + multiple - 1) / multiple * multiple));
}

void give_back(void* memory) {
  if (memory != nullptr && held.limit != kUnlimited)
    held.now -= static_cast<int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

AllocationLimit::AllocationLimit(int64_t bytes) { held = {.limit = bytes}; }
AllocationLimit::~AllocationLimit() { held = {}; }
int64_t AllocationLimit::most() const { return held.most; }

}  // namespace gnomon::fuzz

using gnomon::fuzz::allocate;
using gnomon::fuzz::give_back;
using gnomon::fuzz::or_throw;

// All of them: a sanitizer's library has each for itself, and would not call ours.
void* operator new(size_t n) { return or_throw(allocate(n)); }
void* operator new[](size_t n) { return or_throw(allocate(n)); }
void* operator new(size_t n, std::align_val_t a) { return or_throw(allocate(n, a)); }
void* operator new[](size_t n, std::align_val_t a) { return or_throw(allocate(n, a)); }
void* operator new(size_t n, const std::nothrow_t&) noexcept { return allocate(n); }
void* operator new[](size_t n, const std::nothrow_t&) noexcept { return allocate(n); }
void* operator new(size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate(n, a);
}
void* operator new[](size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate(n, a);
}
void operator delete(void* p) noexcept { give_back(p); }
void operator delete[](void* p) noexcept { give_back(p); }
void operator delete(void* p, size_t) noexcept { give_back(p); }
void operator delete[](void* p, size_t) noexcept { give_back(p); }
void operator delete(void* p, std::align_val_t) noexcept { give_back(p); }
void operator delete[](void* p, std::align_val_t) noexcept { give_back(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { give_back(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { give_back(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { give_back(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { give_back(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { give_back(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { give_back(p); }
