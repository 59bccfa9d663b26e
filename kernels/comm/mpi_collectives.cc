#include "kernels/comm/mpi_collectives.h"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/errors.h"

namespace gnomon {
namespace {

using Clock = std::chrono::steady_clock;

// At most so many bytes in one message; MPI counts in int.
constexpr size_t kMessageBytes = size_t{1} << 28;
constexpr int kTag = 1;
// A wait first asks without rest, then rests between questions.
constexpr int kQuestionsWithoutRest = 20000;
constexpr std::chrono::microseconds kRest{50};
constexpr std::chrono::milliseconds kLongRest{1};

class MpiCollectives final : public Collectives {
 public:
  explicit MpiCollectives(double timeout_seconds) : timeout_(timeout_seconds) {
    int started = 0;
    MPI_Initialized(&started);
    if (started != 0) throw Error("MPI is started already: one set of ranks in a process");
    int provided = 0;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) {
      throw Error("MPI could not be started");
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    if (provided < MPI_THREAD_SERIALIZED) {
      abort("this MPI lets only the main thread call it; one with MPI_THREAD_SERIALIZED is needed");
    }
  }
  ~MpiCollectives() override { MPI_Finalize(); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "mpi"; }

  void exchange(std::span<const std::span<const std::byte>> to,
                std::span<const std::span<std::byte>> from) override {
    GNOMON_ASSERT(std::ssize(to) == size_ && std::ssize(from) == size_);
    requests_.clear();
    expected_.clear();
    for (int other = 0; other < size_; ++other) {
      if (other == rank_) continue;
      std::span<std::byte> room = from[static_cast<size_t>(other)];
      for (size_t at = 0; at < room.size(); at += kMessageBytes) {
        int bytes = static_cast<int>(std::min(kMessageBytes, room.size() - at));
        MPI_Request& request = requests_.emplace_back();
        expected_.push_back(bytes);
        check(MPI_Irecv(room.data() + at, bytes, MPI_BYTE, other, kTag, MPI_COMM_WORLD, &request),
              "receiving");
      }
    }
    for (int other = 0; other < size_; ++other) {
      if (other == rank_) continue;
      std::span<const std::byte> data = to[static_cast<size_t>(other)];
      for (size_t at = 0; at < data.size(); at += kMessageBytes) {
        int bytes = static_cast<int>(std::min(kMessageBytes, data.size() - at));
        MPI_Request& request = requests_.emplace_back();
        check(MPI_Isend(data.data() + at, bytes, MPI_BYTE, other, kTag, MPI_COMM_WORLD, &request),
              "sending");
      }
    }
    wait("an exchange of data");
  }

  void broadcast(std::span<std::byte> data, int root) override {
    for (size_t at = 0; at < data.size(); at += kMessageBytes) {
      int bytes = static_cast<int>(std::min(kMessageBytes, data.size() - at));
      requests_.assign(1, MPI_REQUEST_NULL);
      expected_.clear();
      check(MPI_Ibcast(data.data() + at, bytes, MPI_BYTE, root, MPI_COMM_WORLD, &requests_[0]),
            "a broadcast");
      wait("a broadcast");
    }
  }

  void barrier() override {
    requests_.assign(1, MPI_REQUEST_NULL);
    expected_.clear();
    check(MPI_Ibarrier(MPI_COMM_WORLD, &requests_[0]), "a barrier");
    wait("a barrier");
  }

  void expect_pause() override { patient_ = true; }

  [[noreturn]] void abort(const std::string& message) override {
    std::fprintf(stderr, "rank %d of %d: %s; the job ends\n", rank_, size_, message.c_str());
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::_Exit(1);
  }

 private:
  void check(int code, const char* what) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(code, text, &length);
    abort(fmt::format("{} failed: {} (a rank is gone, or sent another size than was expected)",
                      what, text));
  }

  // Until all requests are done. Receives come first in requests_, their sizes in expected_.
  void wait(const char* what) {
    const Clock::time_point start = Clock::now();
    statuses_.resize(requests_.size());
    for (int64_t asked = 0;; ++asked) {
      int done = 0;
      check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                        statuses_.data()),
            what);
      if (done != 0) break;
      if (asked < kQuestionsWithoutRest) continue;
      if (patient_) {
        std::this_thread::sleep_for(kLongRest);
        continue;
      }
      std::this_thread::sleep_for(kRest);
      const double waited = std::chrono::duration<double>(Clock::now() - start).count();
      if (waited > timeout_) {
        abort(
            fmt::format("waited {:.1f} s for {}, longer than allowed: another rank hangs or does "
                        "something else",
                        waited, what));
      }
    }
    patient_ = false;
    for (size_t i = 0; i < expected_.size(); ++i) {
      int bytes = 0;
      MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes);
      if (bytes != expected_[i]) {
        abort(fmt::format("got {} bytes from rank {} where {} were expected: the ranks disagree",
                          bytes, statuses_[i].MPI_SOURCE, expected_[i]));
      }
    }
  }

  double timeout_;
  int rank_ = 0;
  int size_ = 1;
  bool patient_ = false;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<int> expected_;
};

}  // namespace

std::unique_ptr<Collectives> make_mpi_collectives(double timeout_seconds) {
  return std::make_unique<MpiCollectives>(timeout_seconds);
}

}  // namespace gnomon
