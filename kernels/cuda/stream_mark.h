// A place in the order of a stream, and whether the device has come to it.
#pragma once

namespace gnomon::cuda {

class StreamMark {
 public:
  virtual ~StreamMark() = default;

  // Moves it behind all work that is on the stream now.
  virtual void set() = 0;
  // From any thread, without a wait. Throws Error for what failed on the device before it.
  virtual bool reached() = 0;
};

}  // namespace gnomon::cuda
