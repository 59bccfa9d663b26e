// What the backend needs of a device besides kernels: its memory, a stream, and what libraries do.
// The real one is in cuda_machine.h; the tests have one that lives on the CPU, beside emulated
// kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/device_exchange.h"
#include "kernels/cuda/device_side_gathers.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/product.h"
#include "kernels/memory.h"

namespace gnomon::cuda {

// Work of the stream that was recorded once and can be done again, with the same addresses and
// numbers.
class Recording {
 public:
  virtual ~Recording() = default;
  // Returns when it is on the stream.
  virtual void replay() = 0;
};

class Machine {
 public:
  virtual ~Machine() = default;

  virtual std::string device() const = 0;               // for the fingerprint: what it is
  virtual std::string libraries() const = 0;            // and their versions
  virtual std::string lacks_fp8() const { return {}; }  // as BackendBase::lacks_fp8()
  virtual Memory& memory() = 0;
  virtual Stream stream() = 0;

  // True when work is to be recorded at all. Between the other two, what is put on the stream is
  // recorded and not done; nothing may wait for the device or take memory of it meanwhile.
  // end_recording() gives nullptr where it could not be recorded.
  virtual bool records() const { return true; }
  virtual void begin_recording() = 0;
  virtual std::unique_ptr<Recording> end_recording() = 0;

  // True if multiply() takes such a product of codes: the factors' data and scales need not be
  // there.
  virtual bool multiplies(const Product& /*product*/, const Factor& /*a*/, const Factor& /*b*/) {
    return true;
  }
  // Returns when the work is on the stream. Throws Error for shapes that the library does not take,
  // with those that it does.
  virtual void multiply(const Product& product, const Factor& a, const Factor& b, void* c) = 0;
  // order = the places of `tokens`, sorted by token, those of one token ascending; sorted = their
  // tokens. All of the device.
  virtual void sort_places(const int32_t* tokens, int64_t count, int32_t* sorted,
                           int32_t* order) = 0;
  // On stream().
  virtual Attention& attention() = 0;
  // With the machines of the other ranks, which call it too. By copies to the host, where a machine
  // knows no better. `ranks` must outlive the result, and this too.
  virtual std::unique_ptr<DeviceExchange> connect(Collectives& ranks);
  // The same on a stream beside stream(); on stream() itself, where a machine has one only.
  virtual std::unique_ptr<SideStream> side_stream(Collectives& ranks);
};

}  // namespace gnomon::cuda
