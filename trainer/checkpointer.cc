#include "trainer/checkpointer.h"

#include <cstring>

#include "base/progress.h"

namespace gnomon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kAlignment = 64;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

size_t arena_size(const CheckpointContent& content) {
  size_t bytes = 0;
  for (const auto* tensors : {&content.model, &content.optimizer}) {
    for (const TensorView& tensor : *tensors) bytes += aligned(static_cast<size_t>(tensor.bytes()));
  }
  return bytes;
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

Checkpointer::Checkpointer(CheckpointStore& store, const CheckpointContent& like, int keep_last,
                           CheckpointerCallbacks callbacks, spdlog::logger& log)
    : store_(store),
      keep_last_(keep_last),
      callbacks_(std::move(callbacks)),
      log_(log),
      arena_(arena_size(like)),
      thread_([this] { run(); }) {}

Checkpointer::~Checkpointer() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

int64_t Checkpointer::failures() const {
  std::lock_guard lock(mutex_);
  return failures_;
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
  copy(content);
  report_ = report;
  writing_ = true;
  changed_.notify_all();
}

void Checkpointer::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !writing_; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Checkpointer::copy_tensors(const std::vector<TensorView>& from, std::vector<TensorView>& to,
                                size_t& used) {
  to = from;
  for (TensorView& tensor : to) {
    std::memcpy(arena_.data() + used, tensor.data, static_cast<size_t>(tensor.bytes()));
    tensor.data = arena_.data() + used;
    used += aligned(static_cast<size_t>(tensor.bytes()));
  }
}

void Checkpointer::copy(const CheckpointContent& content) {
  const size_t needed = arena_size(content);
  if (needed > arena_.size()) {
    log_.warn(
        "the checkpoint snapshot arena grows from {} to {} bytes: the plan has more state now",
        arena_.size(), needed);
    arena_.resize(needed);
  }
  snapshot_.config_json = content.config_json;
  snapshot_.trainer_state_json = content.trainer_state_json;
  size_t used = 0;
  copy_tensors(content.model, snapshot_.model, used);
  copy_tensors(content.optimizer, snapshot_.optimizer, used);
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
      log_.error(
          "the checkpoint of step {} failed: {}; training goes on, the checkpoint before stays",
          report_.step, failure.what());
      if (callbacks_.failed) callbacks_.failed(report_, failure.what());
    }
    lock.lock();
    error_ = error;
    failures_ += error ? 1 : 0;
    writing_ = false;
    changed_.notify_all();
  }
}

void Checkpointer::write() {
  const auto start = Clock::now();
  const CheckpointInfo info = store_.write(report_.attempt, report_.step, snapshot_);
  report_.uri = std::filesystem::absolute(info.path).string();
  report_.bytes = info.bytes;
  report_.manifest_hash = info.manifest_hash;
  report_.time = now_seconds();
  log_.debug("checkpoint of step {}: {:.1f} MB in {:.2f} s", report_.step,
             static_cast<double>(info.bytes) / 1e6,
             std::chrono::duration<double>(Clock::now() - start).count());
  callbacks_.written(report_);
  for (const CheckpointInfo& gone : store_.retain(keep_last_, callbacks_.needed)) {
    log_.debug("deleted checkpoint {}", gone.path.string());
  }
}

}  // namespace gnomon
