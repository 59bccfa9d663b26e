// A machine whose recordings a test counts, or has fail.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/machine.h"

namespace gnomon::test {

struct Recordings {
  bool refused = false;  // whether work cannot be recorded
  int replays = 0;       // of all that were made
};

class ObservedRecording final : public cuda::Recording {
 public:
  ObservedRecording(std::unique_ptr<cuda::Recording> inner, Recordings& seen)
      : inner_(std::move(inner)), seen_(seen) {}
  void replay() override {
    ++seen_.replays;
    inner_->replay();
  }

 private:
  std::unique_ptr<cuda::Recording> inner_;
  Recordings& seen_;
};

class ObservedMachine final : public cuda::Machine {
 public:
  // `seen` must outlive this.
  ObservedMachine(std::unique_ptr<cuda::Machine> inner, Recordings& seen)
      : inner_(std::move(inner)), seen_(seen) {}

  std::string device() const override { return inner_->device(); }
  std::string libraries() const override { return inner_->libraries(); }
  std::string lacks_fp8() const override { return inner_->lacks_fp8(); }
  bool multiplies(const cuda::Product& product, const cuda::Factor& a,
                  const cuda::Factor& b) override {
    return inner_->multiplies(product, a, b);
  }
  Memory& memory() override { return inner_->memory(); }
  cuda::Stream stream() override { return inner_->stream(); }
  bool records() const override { return inner_->records(); }
  std::unique_ptr<cuda::DeviceExchange> connect(Collectives& ranks) override {
    return inner_->connect(ranks);
  }
  void begin_recording() override { inner_->begin_recording(); }
  std::unique_ptr<cuda::Recording> end_recording() override {
    std::unique_ptr<cuda::Recording> made = inner_->end_recording();
    if (made == nullptr || seen_.refused) return nullptr;
    return std::make_unique<ObservedRecording>(std::move(made), seen_);
  }
  void multiply(const cuda::Product& product, const cuda::Factor& a, const cuda::Factor& b,
                void* c) override {
    inner_->multiply(product, a, b, c);
  }
  void sort_places(const int32_t* tokens, int64_t count, int32_t* sorted, int32_t* order) override {
    inner_->sort_places(tokens, count, sorted, order);
  }
  cuda::Attention& attention() override { return inner_->attention(); }

 private:
  std::unique_ptr<cuda::Machine> inner_;
  Recordings& seen_;
};

}  // namespace gnomon::test
