#include "kernels/comm/nccl_exchange.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "base/errors.h"
#include "kernels/comm/nccl_library.h"

namespace gnomon::cuda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kVersionMin = 21800;
constexpr std::chrono::milliseconds kBetweenLooks{20};
constexpr std::chrono::microseconds kRest{50};
// For NCCL to end what it runs on the device, before the process ends in any case.
constexpr std::chrono::seconds kAbortMax{2};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// All functions that are called later, so that none is missed then.
void check_library() {
  int version = 0;
  GNOMON_NCCL(ncclGetVersion)(&version);
  if (version < kVersionMin) {
    throw Error(fmt::format("NCCL has version {}, {} or later is needed", version, kVersionMin));
  }
  const SharedLibrary& library = nccl_library();
  for (const char* name :
       {"ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclCommFinalize", "ncclCommDestroy",
        "ncclCommAbort", "ncclSend", "ncclRecv", "ncclGroupStart", "ncclGroupEnd",
        "ncclGetErrorString", "ncclGetLastError"}) {
    library.function<void()>(name);
  }
}

std::string text_of(ncclResult_t result) { return GNOMON_NCCL(ncclGetErrorString)(result); }

class NcclExchange final : public DeviceExchange {
 public:
  NcclExchange(Collectives& ranks, Stream stream, std::unique_ptr<StreamMark> mark,
               double timeout_seconds)
      : ranks_(ranks), stream_(stream), mark_(std::move(mark)), timeout_(timeout_seconds) {
    ncclUniqueId id = first_ranks_id();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    watchdog_ = std::thread([this] { watch(); });
    call(
        "its start",
        [&] {
          return GNOMON_NCCL(ncclCommInitRankConfig)(&communicator_, ranks_.size(), id,
                                                     ranks_.rank(), &config);
        },
        [&] { what_ = nullptr; });
  }

  ~NcclExchange() override {
    call(
        "its end", [&] { return GNOMON_NCCL(ncclCommFinalize)(communicator_); },
        [&] { what_ = nullptr; });
    {
      const std::lock_guard lock(stopping_mutex_);
      stopping_ = true;
    }
    stop_.notify_all();
    watchdog_.join();
    GNOMON_NCCL(ncclCommDestroy)(communicator_);
  }

  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }

  void exchange(const char* what, std::span<const std::span<const std::byte>> to,
                std::span<const std::span<std::byte>> from) override {
    GNOMON_ASSERT(std::ssize(to) == size() && std::ssize(from) == size());
    call(
        what, [&] { return send_and_receive(to, from); },
        [&] {
          mark_->set();
          marked_ = true;
        });
  }

 private:
  ncclResult_t send_and_receive(std::span<const std::span<const std::byte>> to,
                                std::span<const std::span<std::byte>> from) {
    ncclResult_t result = GNOMON_NCCL(ncclGroupStart)();
    const auto also = [&](ncclResult_t next) {
      if (result == ncclSuccess || result == ncclInProgress) result = next;
    };
    for (int other = 0; other < size(); ++other) {
      if (other == rank()) continue;
      const std::span<const std::byte> data = to[static_cast<size_t>(other)];
      const std::span<std::byte> room = from[static_cast<size_t>(other)];
      if (!data.empty()) {
        also(GNOMON_NCCL(ncclSend)(data.data(), data.size(), ncclUint8, other, communicator_,
                                   stream_));
      }
      if (!room.empty()) {
        also(GNOMON_NCCL(ncclRecv)(room.data(), room.size(), ncclUint8, other, communicator_,
                                   stream_));
      }
    }
    also(GNOMON_NCCL(ncclGroupEnd)());
    return result;
  }

  ncclUniqueId first_ranks_id() {
    std::string error;
    ncclUniqueId id = {};
    try {
      check_library();
      const ncclResult_t result = rank() == 0 ? GNOMON_NCCL(ncclGetUniqueId)(&id) : ncclSuccess;
      if (result != ncclSuccess) throw Error("NCCL gives the ranks no id: " + text_of(result));
    } catch (const Error& found) {
      error = found.what();
    }
    ranks_.agree_on_success(error);
    ranks_.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    return id;
  }

  // Makes the calls of one operation, which do not wait, waits until NCCL has taken them, and does
  // `then`. The watchdog looks in between.
  template <class Calls, class Then>
  void call(const char* what, Calls calls, Then then) {
    // Under the lock, or a look that is just at the operation before would forget this one.
    std::unique_lock lock(mutex_);
    what_ = what;
    since_ = Clock::now();
    marked_ = false;
    ncclResult_t result = calls();
    while (result == ncclInProgress || result == ncclSuccess) {
      ncclResult_t state = ncclSuccess;
      result = GNOMON_NCCL(ncclCommGetAsyncError)(communicator_, &state);
      if (result != ncclSuccess) break;
      if (state == ncclSuccess) return then();
      result = state;
      lock.unlock();
      std::this_thread::sleep_for(kRest);
      lock.lock();
    }
    failed(result);
  }

  void watch() {
    std::unique_lock stopping(stopping_mutex_);
    while (!stop_.wait_for(stopping, kBetweenLooks, [&] { return stopping_; })) look();
  }

  // A call that does not come back keeps the lock: the limit counts for it too.
  void look() {
    std::unique_lock lock(mutex_, std::defer_lock);
    const bool looked = lock.try_lock_for(kBetweenLooks);
    if (looked && communicator_ != nullptr) {
      ncclResult_t state = ncclSuccess;
      const ncclResult_t result = GNOMON_NCCL(ncclCommGetAsyncError)(communicator_, &state);
      if (result != ncclSuccess) failed(result);
      if (state != ncclSuccess && state != ncclInProgress) failed(state);
      if (marked_ && reached()) {
        marked_ = false;
        what_ = nullptr;
      }
    }
    if (what_ == nullptr) return;
    const double waited = seconds_since(since_);
    if (waited <= timeout_) return;
    end(
        fmt::format("waited {:.1f} s for {} over NCCL, longer than allowed: another rank or a "
                    "device hangs",
                    waited, name()));
  }

  bool reached() {
    try {
      return mark_->reached();
    } catch (const Error& error) {
      end(fmt::format("{} failed on the device: {}", name(), error.what()));
    }
  }

  const char* name() const {
    const char* what = what_;
    return what == nullptr ? "the time between two exchanges" : what;
  }

  [[noreturn]] void failed(ncclResult_t result) {
    std::string detail;
    if (communicator_ != nullptr) {
      const char* last = GNOMON_NCCL(ncclGetLastError)(communicator_);
      if (last != nullptr && *last != '\0') detail = fmt::format(" ({})", last);
    }
    end(fmt::format("NCCL failed in {} after {:.1f} s: {}{}", name(), seconds_since(since_),
                    text_of(result), detail));
  }

  // The first that comes here ends all ranks.
  [[noreturn]] void end(const std::string& why) {
    if (ending_.exchange(true)) {
      while (true) std::this_thread::sleep_for(kAbortMax);
    }
    const auto ended = std::make_shared<std::atomic<bool>>(false);
    std::thread([communicator = communicator_, ended] {
      if (communicator != nullptr) GNOMON_NCCL(ncclCommAbort)(communicator);
      *ended = true;
    }).detach();
    const Clock::time_point start = Clock::now();
    while (!*ended && Clock::now() - start < kAbortMax) std::this_thread::sleep_for(kRest);
    ranks_.abort(why);
    std::abort();  // GCC does not see that nothing comes here
  }

  Collectives& ranks_;
  Stream stream_;
  std::unique_ptr<StreamMark> mark_;
  double timeout_;
  ncclComm_t communicator_ = nullptr;
  std::timed_mutex mutex_;  // NCCL's functions and the mark are for one thread at a time
  bool marked_ = false;     // the mark is behind the last operation
  std::atomic<const char*> what_ = nullptr;  // that operation, until it is done
  std::atomic<Clock::time_point> since_ = Clock::now();
  std::atomic<bool> ending_ = false;
  std::mutex stopping_mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread watchdog_;
};

}  // namespace

std::unique_ptr<DeviceExchange> make_nccl_exchange(Collectives& ranks, Stream stream,
                                                   std::unique_ptr<StreamMark> mark,
                                                   double timeout_seconds) {
  return std::make_unique<NcclExchange>(ranks, stream, std::move(mark), timeout_seconds);
}

}  // namespace gnomon::cuda
