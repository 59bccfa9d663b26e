// A machine for the CUDA backend on the CPU: memory that the host is not meant to touch, products
// by the book, value by value, and kernels by emulation.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/machine.h"

namespace gnomon::test {

// Copies that are made as late as they may be.
class LateCopy final : public CopyOut {
 public:
  explicit LateCopy(std::span<const Memory::Piece> pieces)
      : pieces_(pieces.begin(), pieces.end()) {}
  void wait() override {
    for (const Memory::Piece& piece : std::exchange(pieces_, {})) {
      std::memcpy(piece.to, piece.from.data(), piece.from.size());
    }
  }

 private:
  std::vector<Memory::Piece> pieces_;
};

// The host's in truth, which nobody is told.
class FarMemory final : public Memory {
 public:
  static inline int64_t bytes_read = 0;  // to the host, of all

  std::byte* allocate(int64_t bytes, const std::string&) override {
    if (cuda::emulation::recording != nullptr) throw Error("memory taken while work is recorded");
    void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    GNOMON_ASSERT(memory != MAP_FAILED);
    return static_cast<std::byte*>(memory);
  }
  // Whoever still goes there ends the program: the addresses serve nobody else.
  void give_back(std::byte* memory, int64_t bytes) noexcept override {
    ++given_back_;
    madvise(memory, static_cast<size_t>(bytes), MADV_DONTNEED);
    mprotect(memory, static_cast<size_t>(bytes), PROT_NONE);
  }
  uint64_t given_back() const override { return given_back_; }
  bool on_host() const override { return false; }
  // What waits for the device, or takes memory, must not come while work is recorded.
  void read(std::span<const std::byte> from, std::byte* to_host) override {
    GNOMON_ASSERT(cuda::emulation::recording == nullptr);
    bytes_read += std::ssize(from);
    copy(from, to_host);
  }
  void write(std::span<const std::byte> from_host, std::byte* to) override {
    GNOMON_ASSERT(cuda::emulation::recording == nullptr);
    copy(from_host, to);
  }
  std::byte* allocate_host_room(int64_t bytes, const std::string& purpose) override {
    return allocate(bytes, purpose);
  }
  void give_back_host_room(std::byte* room, int64_t bytes) noexcept override {
    give_back(room, bytes);
  }
  std::unique_ptr<CopyOut> start_copy_out(std::span<const Piece> pieces) override {
    late_ = std::make_shared<LateCopy>(pieces);
    return std::make_unique<Shared>(late_);
  }
  void settle() override {
    if (late_ != nullptr) late_->wait();
  }
  void copy(std::span<const std::byte> from, std::byte* to) override {
    cuda::emulation::now_or_later([=] { std::memcpy(to, from.data(), from.size()); });
  }

 private:
  struct Shared final : CopyOut {
    explicit Shared(std::shared_ptr<LateCopy> copy) : copy_(std::move(copy)) {}
    void wait() override { copy_->wait(); }
    std::shared_ptr<LateCopy> copy_;
  };
  std::shared_ptr<LateCopy> late_;
  uint64_t given_back_ = 0;
};

class EmulatedRecording final : public cuda::Recording {
 public:
  void replay() override {
    for (const auto& work : work_) work();
  }
  std::vector<std::function<void()>>& work() { return work_; }

 private:
  std::vector<std::function<void()>> work_;
};

class EmulatedMachine : public cuda::Machine {
 public:
  std::string device() const override { return "emulated"; }
  std::string libraries() const override { return attention_.name(); }
  Memory& memory() override { return memory_; }
  cuda::Stream stream() override { return nullptr; }

  void begin_recording() override {
    recording_ = std::make_unique<EmulatedRecording>();
    cuda::emulation::recording = &recording_->work();
  }
  std::unique_ptr<cuda::Recording> end_recording() override {
    cuda::emulation::recording = nullptr;
    return std::move(recording_);
  }

  void multiply(const cuda::Product& p, const cuda::Factor& a, const cuda::Factor& b,
                void* c) override {
    cuda::emulation::now_or_later([=] { multiply_now(p, a, b, c); });
  }
  static void multiply_now(const cuda::Product& p, const cuda::Factor& a, const cuda::Factor& b,
                           void* c) {
    const bool codes = a.format != Format::kBf16;
    GNOMON_ASSERT(codes == (b.format != Format::kBf16));
    // What the library asks for.
    if (codes) GNOMON_ASSERT(!a.transposed && b.transposed && p.n % 16 == 0 && p.k % 16 == 0);
    GNOMON_ASSERT(!p.accumulate || p.fp32_output);
    const auto rows = [](const cuda::Factor& f) { return f.scale == cuda::FactorScale::kRow; };
    if (codes) GNOMON_ASSERT(rows(a) == rows(b));
    const std::vector<float> left = values(a, p.m, p.k, a.transposed);
    const std::vector<float> right = values(b, p.n, p.k, !b.transposed);
    for (int64_t row = 0; row < p.m; ++row) {
      for (int64_t column = 0; column < p.n; ++column) {
        double sum = 0;
        for (int64_t term = 0; term < p.k; ++term) {
          sum += static_cast<double>(left[static_cast<size_t>(row * p.k + term)]) *
                 static_cast<double>(right[static_cast<size_t>(column * p.k + term)]);
        }
        const auto result = static_cast<float>(sum * static_cast<double>(p.alpha));
        const int64_t at = row * p.stride_c + column;
        if (p.fp32_output) {
          float& to = static_cast<float*>(c)[at];
          to = p.accumulate ? to + result : result;
        } else {
          static_cast<bf16*>(c)[at] = to_bf16(result);
        }
      }
    }
  }

  void sort_places(const int32_t* tokens, int64_t count, int32_t* sorted, int32_t* order) override {
    cuda::emulation::now_or_later([=] { sort_now(tokens, count, sorted, order); });
  }
  static void sort_now(const int32_t* tokens, int64_t count, int32_t* sorted, int32_t* order) {
    std::iota(order, order + count, 0);
    std::stable_sort(order, order + count,
                     [&](int32_t x, int32_t y) { return tokens[x] < tokens[y]; });
    for (int64_t i = 0; i < count; ++i) sorted[i] = tokens[order[i]];
  }
  cuda::Attention& attention() override { return attention_; }

 private:
  // A factor as [outer, terms], its scales undone; `terms_first` is how it is stored.
  static std::vector<float> values(const cuda::Factor& f, int64_t outer, int64_t terms,
                                   bool terms_first) {
    // As cuBLASLt demands of FP8 products.
    if (f.format != Format::kBf16) {
      GNOMON_ASSERT(reinterpret_cast<uintptr_t>(f.data) % 16 == 0);
      GNOMON_ASSERT(reinterpret_cast<uintptr_t>(f.inverse_scales) % 16 == 0);
    }
    std::vector<float> result(static_cast<size_t>(outer * terms));
    const int64_t blocks = (terms + 127) / 128, padded = (blocks + 3) / 4 * 4;
    for (int64_t row = 0; row < outer; ++row) {
      for (int64_t term = 0; term < terms; ++term) {
        const int64_t at = terms_first ? term * f.stride + row : row * f.stride + term;
        const float value = f.format == Format::kBf16
                                ? to_float(static_cast<const bf16*>(f.data)[at])
                                : decode(f.format, static_cast<const uint8_t*>(f.data)[at]);
        float inverse = 1;
        if (f.scale == cuda::FactorScale::kTensor) inverse = f.inverse_scales[0];
        if (f.scale == cuda::FactorScale::kRow) inverse = f.inverse_scales[row];
        if (f.scale == cuda::FactorScale::kBlock)
          inverse = f.inverse_scales[row + outer * (term / 128)];
        if (f.scale == cuda::FactorScale::kSquare) {
          inverse = f.inverse_scales[row / 128 * padded + term / 128];
        }
        result[static_cast<size_t>(row * terms + term)] = value * inverse;
      }
    }
    return result;
  }

  FarMemory memory_;
  std::unique_ptr<EmulatedRecording> recording_;
  cuda::OwnAttention attention_;
};

}  // namespace gnomon::test
