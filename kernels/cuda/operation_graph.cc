#include "kernels/cuda/operation_graph.h"

#include <cstddef>

namespace gnomon::cuda {

int OperationGraph::in_memory(const Four& sizes, const Four& strides,
                              GraphTensor::Element element) {
  tensors.push_back({.sizes = sizes,
                     .strides = strides,
                     .element = element,
                     .place = GraphTensor::Place::kMemory});
  return static_cast<int>(tensors.size()) - 1;
}

int OperationGraph::number(float value) {
  tensors.push_back({.place = GraphTensor::Place::kNumber, .number = value});
  return static_cast<int>(tensors.size()) - 1;
}

int OperationGraph::between(const Four& sizes, GraphTensor::Element element) {
  const Four strides{sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
  tensors.push_back({.sizes = sizes, .strides = strides, .element = element});
  return static_cast<int>(tensors.size()) - 1;
}

void OperationGraph::apply(GraphOperation operation, int x, int y, int result) {
  steps.push_back({.operation = operation, .x = x, .y = y, .condition = -1, .result = result});
}

int OperationGraph::apply(GraphOperation operation, int x, int y) {
  const int result = between(tensors[static_cast<size_t>(x)].sizes);
  apply(operation, x, y, result);
  return result;
}

}  // namespace gnomon::cuda
