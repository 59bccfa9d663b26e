#include "bench/accumulation/cuda_device.h"

#include <fmt/format.h>

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

std::vector<DeviceProduct> CublasLtDevice::multiply(const Problem& problem, bool fast_accumulate) {
  const ProblemSpec& s = problem.spec;
  const cuda::Fp8GemmShape shape{
      s.m, s.n, s.k, s.a_format, s.b_format, Format::kFp32, fast_accumulate};
  const float one = 1.0f;
  const cuda::DeviceBuffer a = on_device(problem.a.data(), problem.a.size());
  const cuda::DeviceBuffer b = on_device(problem.b.data(), problem.b.size());
  const cuda::DeviceBuffer scale = on_device(&one, sizeof(one));
  std::vector<DeviceProduct> products;
  for (const cuda::Fp8Algorithm& algorithm : gemm_.algorithms(shape, algorithms_)) {
    DeviceProduct product{algorithm.description,
                          std::vector<float>(static_cast<size_t>(s.m * s.n))};
    // NaN everywhere, so that an output that is not written cannot pass for one.
    const std::vector<uint32_t> unwritten(product.d.size(), 0xFFFFFFFFu);
    const size_t bytes = product.d.size() * sizeof(float);
    const cuda::DeviceBuffer d = on_device(unwritten.data(), bytes);
    const auto* factor = static_cast<const float*>(scale.data());
    gemm_.run(shape, algorithm, a.data(), factor, b.data(), factor, d.data(), nullptr);
    cuda::synchronize();
    d.copy_to_host(product.d.data(), bytes);
    products.push_back(std::move(product));
  }
  return products;
}

}  // namespace gnomon
