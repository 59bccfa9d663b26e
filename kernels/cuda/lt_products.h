// Products by cuBLASLt. The algorithm for a shape is the library's first choice among those that do
// not split what is summed over, found once: the same product always adds up in the same order.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/product.h"

namespace gnomon::cuda {

// One of the library's ways to make a product: valid for products alike in all but their addresses
// and alpha, and for this version of the library.
struct LtAlgorithm {
  std::array<uint64_t, 8> opaque{};
  std::string description;  // "algorithm 66, tile 20, stages 36, split 1, ..."
};

// A handle with its workspace. One stream at a time; not to be used by two threads at once.
class LtProducts {
 public:
  static constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

  LtProducts();
  ~LtProducts();
  LtProducts(const LtProducts&) = delete;
  LtProducts& operator=(const LtProducts&) = delete;

  // As Machine::multiply. Pointers are 16-byte aligned; of codes n and k are multiples of 16.
  // Throws CudaError, ConfigError for what the library does not take, naming what it does. `by` is
  // one of algorithms() instead of the one that is always chosen.
  void multiply(const Product& product, const Factor& a, const Factor& b, void* c, Stream stream,
                const LtAlgorithm* by = nullptr);

  // True if multiply() would find an algorithm; the factors' data and scales need not be there.
  bool supports(const Product& product, const Factor& a, const Factor& b);

  // At most `most`, the one that the library thinks fastest first: that is the one that multiply()
  // chooses. Throws as multiply(), and when there is none.
  std::vector<LtAlgorithm> algorithms(const Product& product, const Factor& a, const Factor& b,
                                      int most);

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

}  // namespace gnomon::cuda
