#include "kernels/devices.h"
#include "tests/engine/tested_backends.h"

namespace gnomon::test {

BackendMakers tested_backends() { return backend_makers(Device::kCuda); }

bool on_a_gpu() { return true; }

}  // namespace gnomon::test
