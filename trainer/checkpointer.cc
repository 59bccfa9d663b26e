#include "trainer/checkpointer.h"

#include "base/progress.h"
#include "base/wall_clock.h"

namespace gnomon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kAlignment = 64;
constexpr const char* kPurpose = "the copy of a checkpoint";

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t arena_size(const CheckpointContent& content) {
  int64_t bytes = 0;
  for (const auto* tensors : {&content.model, &content.optimizer}) {
    for (const TensorView& tensor : *tensors) bytes += aligned(tensor.bytes());
  }
  return bytes;
}

}  // namespace

Checkpointer::Checkpointer(CheckpointStore& store, const CheckpointContent& like, Memory& memory,
                           int keep_last, CheckpointerCallbacks callbacks, spdlog::logger& log)
    : store_(store),
      keep_last_(keep_last),
      callbacks_(std::move(callbacks)),
      log_(log),
      memory_(memory),
      arena_(std::make_unique<HostRoom>(memory, arena_size(like), kPurpose)),
      thread_([this] { run(); }) {}

Checkpointer::~Checkpointer() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Checkpointer::begin(const CheckpointContent& content, const CheckpointReport& report) {
  std::unique_lock lock(mutex_);
  if (writing_) {
    ++waits_;
    const auto start = Clock::now();
    changed_.wait(lock, [this] { return !writing_; });
    const double waited = std::chrono::duration<double>(Clock::now() - start).count();
    wait_seconds_ += waited;
    log_.warn(
        "waited {:.2f} s at step {} for the checkpoint of step {}: checkpoints are due faster than "
        "they can be written",
        waited, report.step, report_.step);
  }
  report_ = report;
  error_ = nullptr;
  try {
    copy(content);
  } catch (const std::exception& error) {  // no memory: later ones may find some
    error_ = std::current_exception();
    return fail(error.what());
  }
  writing_ = true;
  changed_.notify_all();
}

void Checkpointer::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !writing_; });
  if (error_) std::rethrow_exception(error_);
}

bool Checkpointer::failed() const {
  std::lock_guard lock(mutex_);
  return error_ != nullptr;
}

void Checkpointer::fail(const std::string& why) {
  log_.error("the checkpoint of step {} failed: {}; training goes on, the checkpoint before stays",
             report_.step, why);
  if (callbacks_.failed) callbacks_.failed(report_, why);
}

void Checkpointer::copy(const CheckpointContent& content) {
  const int64_t needed = arena_size(content);
  if (needed > arena_bytes()) {
    log_.warn(
        "the checkpoint snapshot arena grows from {} to {} bytes: the plan has more state now",
        arena_bytes(), needed);
    arena_.reset();  // the host may not have room for both
    arena_ = std::make_unique<HostRoom>(memory_, needed, kPurpose);
  }
  snapshot_ = content;
  std::vector<Memory::Piece> pieces;
  std::byte* next = arena_->data();
  for (std::vector<TensorView>* tensors : {&snapshot_.model, &snapshot_.optimizer}) {
    for (TensorView& tensor : *tensors) {
      const auto size = static_cast<size_t>(tensor.bytes());
      pieces.push_back({{static_cast<const std::byte*>(tensor.data), size}, next});
      tensor.data = next;
      next += aligned(tensor.bytes());
    }
  }
  copying_ = memory_.start_copy_out(pieces);
}

void Checkpointer::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return writing_ || stopping_; });
    if (!writing_) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      write();
    } catch (const std::exception& failure) {
      error = std::current_exception();
      fail(failure.what());
    }
    lock.lock();
    error_ = error;
    writing_ = false;
    changed_.notify_all();
  }
}

void Checkpointer::write() {
  copying_->wait();
  const auto start = Clock::now();
  const CheckpointInfo info = store();
  report_.uri = std::filesystem::absolute(info.path).string();
  report_.bytes = info.bytes;
  report_.manifest_hash = info.manifest_hash;
  report_.time = now_seconds();
  log_.debug("checkpoint of step {}: {:.1f} MB in {:.2f} s", report_.step,
             static_cast<double>(info.bytes) / 1e6,
             std::chrono::duration<double>(Clock::now() - start).count());
  callbacks_.written(report_);
  try {
    retain();
  } catch (const std::exception& error) {  // this one is whole all the same
    log_.error("old checkpoints stay: {}", error.what());
  }
}

// On a full disk, tries once more without what nobody has needed since the last deletion.
CheckpointInfo Checkpointer::store() {
  try {
    return store_.write(report_.attempt, report_.step, snapshot_);
  } catch (const SystemError& error) {
    if (!error.disk_full() || retain() == 0) throw;
    log_.warn("{}; old checkpoints were deleted, and it is written again", error.what());
    return store_.write(report_.attempt, report_.step, snapshot_);
  }
}

// Returns how many it has deleted.
size_t Checkpointer::retain() {
  if (callbacks_.before_retention) callbacks_.before_retention();
  const std::vector<CheckpointInfo> deleted = store_.retain(keep_last_, callbacks_.needed);
  for (const CheckpointInfo& gone : deleted) {
    log_.debug("deleted checkpoint {}", gone.path.string());
  }
  return deleted.size();
}

}  // namespace gnomon
