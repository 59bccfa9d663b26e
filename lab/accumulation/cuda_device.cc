#include "lab/accumulation/cuda_device.h"

#include <fmt/format.h>

#include <cstdio>

namespace gnomon {
namespace {

cuda::DeviceBuffer on_device(const void* data, size_t bytes) {
  cuda::DeviceBuffer buffer(bytes);
  buffer.copy_from_host(data, bytes);
  return buffer;
}

}  // namespace

std::string CublasLtDevice::name() const {
  return fmt::format("{} (compute capability {}.{}, driver CUDA {}.{}, runtime {}.{}, cuBLASLt {})",
                     info_.name, info_.major, info_.minor, info_.driver_version / 1000,
                     info_.driver_version % 1000 / 10, info_.runtime_version / 1000,
                     info_.runtime_version % 1000 / 10, info_.cublaslt_version);
}

std::vector<DeviceProduct> CublasLtDevice::multiply(const ProductProblem& problem,
                                                    bool fast_accumulate) {
  const ProblemSpec& s = problem.spec;
  const float one = 1.0f;
  const cuda::DeviceBuffer a = on_device(problem.a.data(), problem.a.size());
  const cuda::DeviceBuffer b = on_device(problem.b.data(), problem.b.size());
  const cuda::DeviceBuffer scale = on_device(&one, sizeof(one));
  const auto factor = [&](const cuda::DeviceBuffer& codes, Format format, bool transposed) {
    return cuda::Factor{.data = codes.data(),
                        .format = format,
                        .stride = s.k,
                        .transposed = transposed,
                        .scale = cuda::FactorScale::kTensor,
                        .inverse_scales = static_cast<const float*>(scale.data())};
  };
  const cuda::Factor left = factor(a, s.a_format, false), right = factor(b, s.b_format, true);
  const cuda::Product made{.m = s.m,
                           .n = s.n,
                           .k = s.k,
                           .fp32_output = true,
                           .stride_c = s.n,
                           .fast_accumulate = fast_accumulate};
  std::vector<DeviceProduct> products;
  if (!products_.supports(made, left, right)) {
    fmt::print(stderr, "cuBLASLt has no product of {} × {} × {}{}: left out\n", s.m, s.n, s.k,
               fast_accumulate ? ", fast" : "");
    return products;
  }
  for (const cuda::LtAlgorithm& algorithm : products_.algorithms(made, left, right, algorithms_)) {
    DeviceProduct product{algorithm.description,
                          std::vector<float>(static_cast<size_t>(s.m * s.n))};
    // NaN everywhere, so that an output that is not written cannot pass for one.
    const std::vector<uint32_t> unwritten(product.d.size(), 0xFFFFFFFFu);
    const size_t bytes = product.d.size() * sizeof(float);
    const cuda::DeviceBuffer d = on_device(unwritten.data(), bytes);
    products_.multiply(made, left, right, d.data(), nullptr, &algorithm);
    cuda::synchronize();
    d.copy_to_host(product.d.data(), bytes);
    products.push_back(std::move(product));
  }
  return products;
}

}  // namespace gnomon
