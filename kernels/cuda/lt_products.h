// Products by cuBLASLt. The algorithm for a shape is the library's first choice among those that do
// not split what is summed over, found once: the same product always adds up in the same order.
#pragma once

#include <memory>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/product.h"

namespace gnomon::cuda {

class LtProducts {
 public:
  static constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

  LtProducts();
  ~LtProducts();
  LtProducts(const LtProducts&) = delete;
  LtProducts& operator=(const LtProducts&) = delete;

  // As Machine::multiply. Pointers are 16-byte aligned; of codes n and k are multiples of 16.
  // Throws CudaError, ConfigError for a shape that the library does not take.
  void multiply(const Product& product, const Factor& a, const Factor& b, void* c, Stream stream);

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

}  // namespace gnomon::cuda
