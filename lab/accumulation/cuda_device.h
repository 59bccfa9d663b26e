// cuBLASLt on the current CUDA device, as what is compared.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/lt_products.h"
#include "lab/accumulation/comparison.h"

namespace gnomon {

class CublasLtDevice final : public ProductDevice {
 public:
  // At most `algorithms` of the library's kernels for each product.
  CublasLtDevice(const cuda::DeviceInfo& info, int algorithms)
      : info_(info), algorithms_(algorithms) {}

  std::string name() const override;
  std::vector<DeviceProduct> multiply(const ProductProblem& problem, bool fast_accumulate) override;

 private:
  cuda::DeviceInfo info_;
  int algorithms_;
  cuda::LtProducts products_;
};

}  // namespace gnomon
