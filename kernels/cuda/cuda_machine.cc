#include "kernels/cuda/cuda_machine.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdlib>

#include "base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/lt_products.h"
#include "kernels/cuda/sort.h"

namespace gnomon::cuda {
namespace {

class OwnStream {
 public:
  OwnStream() {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~OwnStream() { cudaStreamDestroy(stream_); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  Stream get() const { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

class DeviceMemory final : public Memory {
 public:
  explicit DeviceMemory(const OwnStream& stream) : stream_(stream) {}

  std::byte* take(int64_t bytes, const std::string& purpose) override {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    void* memory = nullptr;
    const bool fits = static_cast<size_t>(bytes) <= free;
    if (!fits || cudaMalloc(&memory, static_cast<size_t>(bytes)) != cudaSuccess) {
      cudaGetLastError();  // it is told here
      throw Error(fmt::format("{} needs {} bytes of the GPU's memory, of which {} of {} are free",
                              purpose, bytes, free, total));
    }
    check(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream_.get()), "cudaMemsetAsync");
    return static_cast<std::byte*>(memory);
  }
  void give_back(std::byte* memory, int64_t) noexcept override { cudaFree(memory); }
  bool on_host() const override { return false; }

  void read(std::span<const std::byte> from, std::byte* to_host) override {
    copy(from, to_host, cudaMemcpyDeviceToHost);
    stream_.wait();
  }
  void write(std::span<const std::byte> from_host, std::byte* to) override {
    copy(from_host, to, cudaMemcpyHostToDevice);
    stream_.wait();
  }
  void copy(std::span<const std::byte> from, std::byte* to) override {
    copy(from, to, cudaMemcpyDeviceToDevice);
  }

 private:
  void copy(std::span<const std::byte> from, std::byte* to, cudaMemcpyKind kind) const {
    if (from.empty()) return;
    check(cudaMemcpyAsync(to, from.data(), from.size(), kind, stream_.get()), "cudaMemcpyAsync");
  }

  const OwnStream& stream_;
};

class CudaMachine final : public Machine {
 public:
  explicit CudaMachine(AttentionChoice choice)
      : info_(device_info()), memory_(stream_), scratch_(memory_) {
    if (!info_.has_fp8()) {
      throw CudaError(
          fmt::format("{} (compute capability {}.{}) has no FP8; a device from 8.9 on has",
                      info_.name, info_.major, info_.minor));
    }
    attention_ = make_attention(choice, memory_, stream(), [](const std::string& text) {
      fmt::print(stderr, "warning: {}\n", text);
    });
  }

  std::string device() const override {
    return fmt::format("{} (compute capability {}.{})", info_.name, info_.major, info_.minor);
  }
  std::string libraries() const override {
    return fmt::format("driver {}, runtime {}, cuBLASLt {}, {}", info_.driver_version,
                       info_.runtime_version, info_.cublaslt_version, attention_->name());
  }
  Memory& memory() override { return memory_; }
  Stream stream() override { return stream_.get(); }
  void multiply(const Product& product, const Factor& a, const Factor& b, void* c) override {
    products_.multiply(product, a, b, c, stream());
  }
  void sort_places(const int32_t* tokens, int64_t count, int32_t* sorted, int32_t* order) override {
    const int64_t bytes = sort_scratch_bytes(count);
    cuda::sort_places(tokens, count, sorted, order, scratch_.at_least(bytes).data(), bytes,
                      stream());
  }
  Attention& attention() override { return *attention_; }

 private:
  DeviceInfo info_;  // before all else: it says when there is no device
  OwnStream stream_;
  DeviceMemory memory_;
  LtProducts products_;
  Buffer<std::byte> scratch_;
  std::unique_ptr<Attention> attention_;
};

}  // namespace

AttentionChoice attention_choice_of_environment() {
  return attention_choice(std::getenv("GNOMON_ATTENTION"));
}

std::unique_ptr<Machine> make_cuda_machine(AttentionChoice choice) {
  return std::make_unique<CudaMachine>(choice);
}

}  // namespace gnomon::cuda
