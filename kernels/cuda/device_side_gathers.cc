#include "kernels/cuda/device_side_gathers.h"

#include <deque>
#include <utility>

#include "base/errors.h"
#include "kernels/cuda/device_wires.h"
#include "kernels/cuda/machine.h"

namespace gnomon::cuda {
namespace {

class DeviceSideGathers final : public SideGathers {
 public:
  DeviceSideGathers(std::unique_ptr<SideStream> side, Memory& memory,
                    std::vector<WireLayout> layouts)
      : side_(std::move(side)) {
    for (WireLayout& layout : layouts) {
      wires_.push_back(
          make_device_wires(side_->exchange(), memory, side_->stream(), std::move(layout)));
    }
  }

  void start(int layout, WireFormat format, WeightSpan weights) override {
    side_->follow_operations();
    Wires& wires = *wires_.at(static_cast<size_t>(layout));
    std::visit([&](auto values) { wires.all_gather(format, values); }, weights);
    started_.push_back(side_->mark());
  }
  void finish() override {
    GNOMON_ASSERT(!started_.empty());
    started_.front()();
    started_.pop_front();
  }

 private:
  std::unique_ptr<SideStream> side_;
  std::vector<std::unique_ptr<Wires>> wires_;  // by layout
  std::deque<std::function<void()>> started_;
};

class SameStream final : public SideStream {
 public:
  SameStream(std::unique_ptr<DeviceExchange> exchange, Stream stream)
      : exchange_(std::move(exchange)), stream_(stream) {}

  Stream stream() override { return stream_; }
  DeviceExchange& exchange() override { return *exchange_; }
  void follow_operations() override {}
  std::function<void()> mark() override {
    return [] {};
  }

 private:
  std::unique_ptr<DeviceExchange> exchange_;
  Stream stream_;
};

}  // namespace

std::unique_ptr<SideGathers> make_device_side_gathers(std::unique_ptr<SideStream> side,
                                                      Memory& memory,
                                                      std::vector<WireLayout> layouts) {
  return std::make_unique<DeviceSideGathers>(std::move(side), memory, std::move(layouts));
}

std::unique_ptr<SideStream> make_same_stream(std::unique_ptr<DeviceExchange> exchange,
                                             Stream stream) {
  return std::make_unique<SameStream>(std::move(exchange), stream);
}

std::unique_ptr<SideStream> Machine::side_stream(Collectives& ranks) {
  return make_same_stream(connect(ranks), stream());
}

}  // namespace gnomon::cuda
