// A file of its own: where the compiler sees them beside their callers, it takes malloc's memory in
// operator delete for a mistake.
#include "tests/engine/counting_new.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<size_t> largest_request = 0;
std::atomic<size_t> request_count = 0;

void note(size_t bytes) {
  ++request_count;
  size_t largest = largest_request.load();
  while (bytes > largest && !largest_request.compare_exchange_weak(largest, bytes)) {
  }
}

}  // namespace

void* operator new(size_t bytes) {
  note(bytes);
  if (void* memory = std::malloc(std::max<size_t>(bytes, 1))) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  note(bytes);
  auto align = static_cast<size_t>(alignment);
  if (void* memory = std::aligned_alloc(align, (bytes + align - 1) / align * align)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace gnomon::test {

void forget_requests() { largest_request = request_count = 0; }
std::size_t requests() { return request_count; }
std::size_t largest_request_bytes() { return largest_request; }

}  // namespace gnomon::test
