// Where the tests of the CUDA kernels keep what a kernel reads and writes. The same sources are
// built twice: with the kernels as functions of the host, where this memory is the host's to the
// byte (so that a sanitizer sees every access outside), and for a GPU, where it is the device's.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/memory.h"

namespace gnomon::cuda::test {

Memory& device_memory();
Stream device_stream();

// Elements that kernels may have.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(std::span<const T> content) : OnDevice(content.size()) {
    write_from_host(device_memory(), content, span());
  }
  explicit OnDevice(const std::vector<T>& content) : OnDevice(std::span<const T>(content)) {}
  explicit OnDevice(size_t count) : memory_(device_memory()), size_(count) {
    memory_.at_least(static_cast<int64_t>(count));
  }

  T* data() { return memory_.data(); }
  const T* data() const { return memory_.data(); }
  std::span<T> span() { return {memory_.data(), size_}; }
  // Once all kernels have run.
  void read(std::span<T> to) const {
    const HostView<T> view(device_memory(), std::span<const T>(memory_.data(), size_));
    std::ranges::copy(view, to.begin());
  }

 private:
  Buffer<T> memory_;
  size_t size_;
};

// An argument that a kernel reads: there for as long as the call.
template <class T>
class Given {
 public:
  explicit Given(std::span<const T> content) : there_(content) {}
  operator const T*() const { return there_.data(); }  // NOLINT(google-explicit-constructor)

 private:
  OnDevice<T> there_;
};

// An argument that a kernel writes: what it left comes back at the call's end.
template <class T>
class Changed {
 public:
  explicit Changed(std::span<T> content) : content_(content), there_(std::span<const T>(content)) {}
  ~Changed() noexcept(false) { there_.read(content_); }  // a kernel's error fails its case alone
  Changed(const Changed&) = delete;
  Changed& operator=(const Changed&) = delete;
  operator T*() { return there_.data(); }  // NOLINT(google-explicit-constructor)

 private:
  std::span<T> content_;
  OnDevice<T> there_;
};

template <class T>
Given<T> given(const std::vector<T>& content) {
  return Given<T>(std::span<const T>(content));
}
inline Given<float> given(const float& value) { return Given<float>(std::span(&value, 1)); }
template <class T>
Changed<T> changed(std::vector<T>& content) {
  return Changed<T>(std::span<T>(content));
}
template <class T>
Changed<T> changed(T& value) {
  return Changed<T>(std::span<T>(&value, 1));
}

}  // namespace gnomon::cuda::test
