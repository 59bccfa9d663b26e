#include "kernels/side_gathers.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/errors.h"

namespace gnomon {
namespace {

// One thread, so that gathers come in their order; the ranks' transport needs no more than that
// one thread uses it at a time.
class HostSideGathers final : public SideGathers {
 public:
  HostSideGathers(Collectives& ranks, std::vector<WireLayout> layouts) {
    for (WireLayout& layout : layouts) {
      // The operations have the other threads.
      wires_.push_back(make_host_wires(ranks, std::move(layout), 1));
    }
    thread_ = std::thread([this] { work(); });
  }
  ~HostSideGathers() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void start(int layout, WireFormat format, WeightSpan weights) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back({wires_.at(static_cast<size_t>(layout)).get(), format, weights});
      ++unfinished_;
    }
    changed_.notify_all();
  }

  void finish() override {
    std::unique_lock lock(mutex_);
    GNOMON_ASSERT(unfinished_ > 0);
    changed_.wait(lock, [&] { return done_ > 0 || error_ != nullptr; });
    if (error_ != nullptr) std::rethrow_exception(error_);
    --unfinished_;
    --done_;
  }

 private:
  struct Job {
    Wires* wires = nullptr;
    WireFormat format;
    WeightSpan weights;
  };

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const Job job = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      std::exception_ptr error;
      try {
        std::visit([&](auto weights) { job.wires->all_gather(job.format, weights); }, job.weights);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      ++done_;
      if (error != nullptr) error_ = error;
      changed_.notify_all();
    }
  }

  std::vector<std::unique_ptr<Wires>> wires_;  // by layout
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> waiting_;
  int unfinished_ = 0;  // started, and finish() not called
  int done_ = 0;        // of these
  std::exception_ptr error_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<SideGathers> make_host_side_gathers(Collectives& ranks,
                                                    std::vector<WireLayout> layouts) {
  return std::make_unique<HostSideGathers>(ranks, std::move(layouts));
}

}  // namespace gnomon
