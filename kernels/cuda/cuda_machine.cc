#include "kernels/cuda/cuda_machine.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string_view>

#include "base/errors.h"
#include "kernels/comm/start_collectives.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/device_choice.h"
#include "kernels/cuda/lt_products.h"
#include "kernels/cuda/sort.h"
#include "kernels/cuda/stream_mark.h"
#ifdef GNOMON_NCCL_FOUND
#include "kernels/comm/nccl_exchange.h"
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

// The device of the thread that makes this. Another thread takes it before it asks the runtime for
// anything: it would begin with device 0 otherwise, and make a context of hundreds of MB there.
class OwnDevice {
 public:
  OwnDevice() { check(cudaGetDevice(&device_), "cudaGetDevice"); }
  void select() const { use_device(device_); }

 private:
  int device_ = 0;
};

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(Stream stream) const { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  void hold_up(Stream stream) const {
    check(cudaStreamWaitEvent(stream, event_), "cudaStreamWaitEvent");
  }
  void wait() const {
    device_.select();
    check(cudaEventSynchronize(event_), "cudaEventSynchronize");
  }

 private:
  OwnDevice device_;
  cudaEvent_t event_ = nullptr;
};

class CopyOnSideStream final : public CopyOut {
 public:
  explicit CopyOnSideStream(std::shared_ptr<const Event> done) : done_(std::move(done)) {}
  void wait() override { done_->wait(); }

 private:
  std::shared_ptr<const Event> done_;
};

class DeviceMemory final : public Memory {
 public:
  explicit DeviceMemory(const OwnStream& stream) : stream_(stream) {}

  std::byte* allocate(int64_t bytes, const std::string& purpose) override {
    const auto [free, total] = what_is_left();
    void* memory = nullptr;
    const cudaError_t status =
        bytes <= free ? cudaMalloc(&memory, static_cast<size_t>(bytes)) : cudaErrorMemoryAllocation;
    if (status != cudaSuccess) {
      cudaGetLastError();  // it is reported here
      throw Error(
          fmt::format("{} needs {} bytes of the GPU's memory, of which {} of {} are free ({})",
                      purpose, bytes, free, total, cudaGetErrorName(status)));
    }
    check(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream_.get()), "cudaMemsetAsync");
    stream_.wait();  // another stream may be the first to use it
    return static_cast<std::byte*>(memory);
  }
  void give_back(std::byte* memory, int64_t) noexcept override {
    ++given_back_;
    cudaFree(memory);
  }
  uint64_t given_back() const override { return given_back_; }
  bool on_host() const override { return false; }
  std::optional<MemoryLeft> left() override { return what_is_left(); }

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

  std::byte* allocate_host_room(int64_t bytes, const std::string& purpose) override {
    // It says when the host has not so much: page-locked memory is taken from everybody else.
    std::byte* room = host_memory().allocate(bytes, purpose);
    const auto size = static_cast<size_t>(bytes);
    if (cudaHostRegister(room, size, cudaHostRegisterDefault) == cudaSuccess) {
      page_locked_.insert(room);
    } else {
      cudaGetLastError();  // it is reported here
      fmt::print(stderr,
                 "warning: {} bytes for {} could not be page-locked: copies to it are slow\n",
                 bytes, purpose);
    }
    return room;
  }
  void give_back_host_room(std::byte* room, int64_t bytes) noexcept override {
    if (page_locked_.erase(room) > 0) {
      cudaStreamSynchronize(side_.get());  // a copy to it may be on its way still
      cudaHostUnregister(room);
    }
    host_memory().give_back(room, bytes);
  }
  std::unique_ptr<CopyOut> start_copy_out(std::span<const Piece> pieces) override {
    const Event before;
    before.record(stream_.get());
    before.hold_up(side_.get());
    for (const Piece& piece : pieces) {
      if (piece.from.empty()) continue;
      check(cudaMemcpyAsync(piece.to, piece.from.data(), piece.from.size(), cudaMemcpyDefault,
                            side_.get()),
            "cudaMemcpyAsync to the host");
    }
    copied_ = std::make_shared<Event>();
    copied_->record(side_.get());
    return std::make_unique<CopyOnSideStream>(copied_);
  }
  void settle() override {
    if (copied_ != nullptr) copied_->hold_up(stream_.get());
    copied_.reset();
  }

 private:
  static MemoryLeft what_is_left() {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
  }
  void copy(std::span<const std::byte> from, std::byte* to, cudaMemcpyKind kind) const {
    if (from.empty()) return;
    check(cudaMemcpyAsync(to, from.data(), from.size(), kind, stream_.get()), "cudaMemcpyAsync");
  }

  const OwnStream& stream_;
  OwnStream side_;
  std::set<std::byte*> page_locked_;
  uint64_t given_back_ = 0;
  std::shared_ptr<Event> copied_;  // what later operations have not been held up for
};

class Graph final : public Recording {
 public:
  Graph(cudaGraph_t graph, Stream stream) : stream_(stream) {
    check(cudaGraphInstantiate(&graph_, graph, 0), "cudaGraphInstantiate");
  }
  ~Graph() override { cudaGraphExecDestroy(graph_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void replay() override { check(cudaGraphLaunch(graph_, stream_), "cudaGraphLaunch"); }

 private:
  cudaGraphExec_t graph_ = nullptr;
  Stream stream_;
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
    device_.select();
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
  OwnDevice device_;
  const OwnStream& stream_;
  cudaEvent_t event_ = nullptr;
};

#ifdef GNOMON_NCCL_FOUND
class CudaSideStream final : public SideStream {
 public:
  // `operations` must outlive this.
  CudaSideStream(Collectives& ranks, const OwnStream& operations)
      : operations_(operations),
        exchange_(make_nccl_exchange(ranks, side_.get(), std::make_unique<EventMark>(side_),
                                     kRankSilenceSecondsMax)) {}

  Stream stream() override { return side_.get(); }
  DeviceExchange& exchange() override { return *exchange_; }
  void follow_operations() override {
    const Event here;
    here.record(operations_.get());
    here.hold_up(side_.get());
  }
  std::function<void()> mark() override {
    const auto done = std::make_shared<Event>();
    done->record(side_.get());
    return [this, done] { done->hold_up(operations_.get()); };
  }

 private:
  const OwnStream& operations_;
  OwnStream side_;
  std::unique_ptr<DeviceExchange> exchange_;
};
#endif

class CudaMachine final : public Machine {
 public:
  explicit CudaMachine(AttentionChoice choice)
      : info_(device_info()), memory_(stream_), scratch_(memory_) {
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
  std::string lacks_fp8() const override {
    if (info_.has_fp8()) return {};
    return fmt::format("{} has none: compute capability 8.9 is the first with FP8", device());
  }
  bool multiplies(const Product& product, const Factor& a, const Factor& b) override {
    return products_.supports(product, a, b);
  }
  Memory& memory() override { return memory_; }
  Stream stream() override { return stream_.get(); }
  bool records() const override {
    const char* choice = std::getenv("GNOMON_GRAPHS");
    return choice == nullptr || std::string_view(choice) != "off";
  }
  void begin_recording() override {
    check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
  }
  std::unique_ptr<Recording> end_recording() override {
    cudaGraph_t graph = nullptr;
    const cudaError_t status = cudaStreamEndCapture(stream(), &graph);
    if (status != cudaSuccess || graph == nullptr) {
      cudaGetLastError();  // what is returned says it
      fmt::print(stderr, "warning: a pass could not be recorded: {}\n", cudaGetErrorName(status));
      return nullptr;
    }
    const std::unique_ptr<CUgraph_st, decltype(&cudaGraphDestroy)> owned(graph, cudaGraphDestroy);
    try {
      return std::make_unique<Graph>(graph, stream());
    } catch (const CudaError& error) {
      fmt::print(stderr, "warning: a recorded pass cannot be used: {}\n", error.what());
      return nullptr;
    }
  }
  void multiply(const Product& product, const Factor& a, const Factor& b, void* c) override {
    products_.multiply(product, a, b, c, stream());
  }
#ifdef GNOMON_NCCL_FOUND
  std::unique_ptr<DeviceExchange> connect(Collectives& ranks) override {
    return make_nccl_exchange(ranks, stream(), std::make_unique<EventMark>(stream_),
                              kRankSilenceSecondsMax);
  }
  std::unique_ptr<SideStream> side_stream(Collectives& ranks) override {
    return std::make_unique<CudaSideStream>(ranks, stream_);
  }
#else
  std::unique_ptr<DeviceExchange> connect(Collectives&) override {
    throw Error(
        "ranks on GPUs need NCCL, which this build has not: install its header (libnccl-dev) and "
        "build again, or start a single process");
  }
#endif
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

std::unique_ptr<Machine> make_cuda_machine(std::optional<int> local_rank, AttentionChoice choice) {
  if (local_rank) use_device(device_of(local_rank, device_count()));
  return std::make_unique<CudaMachine>(choice);
}

}  // namespace gnomon::cuda
