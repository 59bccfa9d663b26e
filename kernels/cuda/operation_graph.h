// What a library computes as one kernel: tensors of four dimensions, and operations
// between them. Plain data, so that it can be looked at, and run by a test, where there is no
// library.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace gnomon::cuda {

using Four = std::array<int64_t, 4>;  // sequences, heads, rows, columns

struct GraphTensor {
  enum class Element { kBf16, kFp32, kInt32, kBool };
  enum class Place {
    kMemory,   // the caller has it
    kBetween,  // only from one operation to another: need not exist
    kNumber,   // one number of the host
  };

  Four sizes{1, 1, 1, 1}, strides{1, 1, 1, 1};  // in elements
  Element element = Element::kFp32;
  Place place = Place::kBetween;
  float number = 0;
};

enum class GraphOperation {
  kProduct,  // of matrices: x[rows, terms]·y[terms, columns]; heads of x share those of y in turn
  // One value from values at the same place. Where y has size 1, its value is for all.
  kMultiply,
  kAdd,
  kSubtract,
  kDivide,
  kExponential,
  kLogarithm,
  kPlaceAlong,  // the place along `axis`, whatever x holds
  kAtLeast,     // x ≥ y
  kSelect,      // x where `condition` holds, y elsewhere
  // Over what lies in x between one place of the result and the next: all columns, or neighbouring
  // heads.
  kSum,
  kLargest,
  kView,  // the same memory with other sizes and strides
};

struct GraphStep {
  GraphOperation operation;
  int x;          // tensors by their number
  int y;          // −1: none
  int condition;  // −1: none
  int result;
  int axis = 0;
};

struct OperationGraph {
  std::vector<GraphTensor> tensors;
  std::vector<GraphStep> steps;  // in an order in which they can be done

  // Each returns the number of the tensor that it adds.
  int in_memory(const Four& sizes, const Four& strides, GraphTensor::Element element);
  int number(float value);
  // Dense, in the order of its sizes.
  int between(const Four& sizes, GraphTensor::Element element = GraphTensor::Element::kFp32);

  // Add a step; those without a result make a tensor between, as large as x, and return it.
  void apply(GraphOperation operation, int x, int y, int result);
  int apply(GraphOperation operation, int x, int y = -1);
};

}  // namespace gnomon::cuda
