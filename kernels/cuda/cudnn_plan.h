// An operation graph that cuDNN has made a kernel of. Only for files of this folder and its tests.
#pragma once

#include <cudnn_graph.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/operation_graph.h"

namespace gnomon::cuda {

// One of the library's descriptors.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : it_(std::exchange(other.it_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(it_, other.it_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  cudnnBackendDescriptor_t get() const { return it_; }
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
           const void* values);
  void set(cudnnBackendAttributeName_t name, const Descriptor& value);
  void finish();

 private:
  cudnnBackendDescriptor_t it_ = nullptr;
};

// What a plan is made for: the device of a handle; or, without a handle, a device that only its
// properties tell of, as this text (cuDNN's own JSON).
struct PlanTarget {
  cudnnHandle_t handle = nullptr;
  std::string properties;
};

class CudnnPlan {
 public:
  // The first of the library's proposals that it can make and that repeats its bits. Throws
  // NotSupported when there is none.
  CudnnPlan(const OperationGraph& graph, const PlanTarget& target);

  int64_t workspace_bytes() const { return workspace_bytes_; }
  // The name of its (first) kernel, by the library's description; empty where that has none.
  std::string kernel() const;

  // On the handle's stream. `memory` has an address for each tensor in memory, in their order. The
  // workspace is 256-byte aligned.
  void run(cudnnHandle_t handle, const std::vector<void*>& memory, std::byte* workspace) const;

 private:
  Descriptor plan_;
  int64_t workspace_bytes_ = 0;
  std::vector<int64_t> memory_ids_, number_ids_;
  std::vector<float> numbers_;
};

}  // namespace gnomon::cuda
