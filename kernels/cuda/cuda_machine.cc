#include "kernels/cuda/cuda_machine.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/device_choice.h"
#include "kernels/cuda/lt_products.h"
#include "kernels/cuda/sort.h"
#include "kernels/cuda/stream_mark.h"
#include "kernels/start_collectives.h"
#ifdef GNOMON_NCCL_FOUND
#include "kernels/cuda/nccl_exchange.h"
#endif

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

class EventMark final : public StreamMark {
 public:
  explicit EventMark(const OwnStream& stream) : stream_(stream) {
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
  }
  ~EventMark() override { cudaEventDestroy(event_); }
  EventMark(const EventMark&) = delete;
  EventMark& operator=(const EventMark&) = delete;

  void set() override { check(cudaEventRecord(event_, stream_.get()), "cudaEventRecord"); }
  bool reached() override {
    // A thread that only asks must not spoil the capture of a graph in another.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
    const cudaError_t status = cudaEventQuery(event_);
    check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
    if (status == cudaErrorNotReady) {
      cudaGetLastError();  // it is no error
      return false;
    }
    check(status, "cudaEventQuery");
    return true;
  }

 private:
  const OwnStream& stream_;
  cudaEvent_t event_ = nullptr;
};

class CudaMachine final : public Machine {
 public:
  CudaMachine() : info_(device_info()), memory_(stream_), scratch_(memory_) {
    if (!info_.has_fp8()) {
      throw CudaError(
          fmt::format("{} (compute capability {}.{}) has no FP8; a device from 8.9 on has",
                      info_.name, info_.major, info_.minor));
    }
  }

  std::string device() const override {
    return fmt::format("{} (compute capability {}.{})", info_.name, info_.major, info_.minor);
  }
  std::string libraries() const override {
    return fmt::format("driver {}, runtime {}, cuBLASLt {}", info_.driver_version,
                       info_.runtime_version, info_.cublaslt_version);
  }
  Memory& memory() override { return memory_; }
  Stream stream() override { return stream_.get(); }
  void multiply(const Product& product, const Factor& a, const Factor& b, void* c) override {
    products_.multiply(product, a, b, c, stream());
  }
  std::unique_ptr<DeviceExchange> connect([[maybe_unused]] Collectives& ranks) override {
#ifdef GNOMON_NCCL_FOUND
    return make_nccl_exchange(ranks, stream(), std::make_unique<EventMark>(stream_),
                              kRankSilenceSecondsMax);
#else
    throw Error(
        "ranks on GPUs need NCCL, which this build has not: install its header (libnccl-dev) and "
        "build again, or start a single process");
#endif
  }
  void sort_places(const int32_t* tokens, int64_t count, int32_t* sorted, int32_t* order) override {
    const int64_t bytes = sort_scratch_bytes(count);
    cuda::sort_places(tokens, count, sorted, order, scratch_.at_least(bytes).data(), bytes,
                      stream());
  }

 private:
  DeviceInfo info_;  // before all else: it says when there is no device
  OwnStream stream_;
  DeviceMemory memory_;
  LtProducts products_;
  Buffer<std::byte> scratch_;
};

}  // namespace

std::unique_ptr<Machine> make_cuda_machine(std::optional<int> local_rank) {
  if (local_rank) use_device(device_of(local_rank, device_count()));
  return std::make_unique<CudaMachine>();
}

}  // namespace gnomon::cuda
