// An operator who interferes with the runs of a history now and then.
#pragma once

#include <vector>

#include "tests/robustness/draw.h"
#include "tests/robustness/endpoint.h"

namespace gnomon::robustness {

class Operator {
 public:
  Operator(Scene& scene, uint64_t seed, int runs);
  // Until the trainers are through.
  void run();

 private:
  void interfere();

  Scene& scene_;
  Draw draw_;
  int runs_;
  int asked_ = 0;
  Endpoint endpoint_;
};

}  // namespace gnomon::robustness
