// An operation graph done step by step in double precision, by the meanings that
// kernels/cuda/operation_graph.h gives: what a library's kernel should compute.
#pragma once

#include <cmath>
#include <map>
#include <span>
#include <vector>

#include "base/errors.h"
#include "kernels/cuda/operation_graph.h"
#include "numerics/formats.h"

namespace gnomon::test {

class GraphInterpreter {
 public:
  // `memory` has an address for each tensor in memory, in their order.
  GraphInterpreter(const cuda::OperationGraph& graph, std::span<void* const> memory)
      : graph_(graph), values_(graph.tensors.size()), addresses_(graph.tensors.size()) {
    size_t next = 0;
    for (size_t i = 0; i < graph.tensors.size(); ++i) {
      if (graph.tensors[i].place == cuda::GraphTensor::Place::kMemory) {
        addresses_[i] = memory[next++];
      }
    }
    GNOMON_ASSERT(next == memory.size());
  }

  void run() {
    for (const cuda::GraphStep& step : graph_.steps) {
      std::vector<double> result = done(step);
      const auto at = static_cast<size_t>(step.result);
      if (addresses_[at] != nullptr) store(at, result);
      values_[at] = std::move(result);
    }
  }

 private:
  using Operation = cuda::GraphOperation;
  using Tensor = cuda::GraphTensor;

  template <class Body>
  static void for_each(const cuda::Four& sizes, Body body) {
    for (int64_t a = 0; a < sizes[0]; ++a) {
      for (int64_t b = 0; b < sizes[1]; ++b) {
        for (int64_t c = 0; c < sizes[2]; ++c) {
          for (int64_t d = 0; d < sizes[3]; ++d) body(cuda::Four{a, b, c, d});
        }
      }
    }
  }
  static int64_t dot(const cuda::Four& x, const cuda::Four& y) {
    return x[0] * y[0] + x[1] * y[1] + x[2] * y[2] + x[3] * y[3];
  }
  const Tensor& tensor(int i) const { return graph_.tensors[static_cast<size_t>(i)]; }

  // Where `sizes` are smaller than the index needs: the one value, or that of the group of heads.
  double at(int i, cuda::Four index, const cuda::Four& of) {
    const cuda::Four& sizes = tensor(i).sizes;
    for (size_t axis = 0; axis < 4; ++axis) index[axis] = index[axis] * sizes[axis] / of[axis];
    const std::vector<double>& all = values(i);
    return all[static_cast<size_t>(
        ((index[0] * sizes[1] + index[1]) * sizes[2] + index[2]) * sizes[3] + index[3])];
  }

  const std::vector<double>& values(int i) {
    std::vector<double>& all = values_[static_cast<size_t>(i)];
    if (!all.empty()) return all;
    const Tensor& it = tensor(i);
    const void* address = addresses_[static_cast<size_t>(i)];
    if (it.place == Tensor::Place::kNumber) all.push_back(static_cast<double>(it.number));
    GNOMON_ASSERT(it.place != Tensor::Place::kBetween);  // made by a step before
    if (address == nullptr) return all;
    for_each(it.sizes, [&](const cuda::Four& index) {
      const int64_t place = dot(index, it.strides);
      all.push_back(static_cast<double>(it.element == Tensor::Element::kBf16
                                            ? to_float(static_cast<const bf16*>(address)[place])
                                            : static_cast<const float*>(address)[place]));
    });
    return all;
  }

  void store(size_t i, const std::vector<double>& all) {
    const Tensor& it = graph_.tensors[i];
    size_t next = 0;
    for_each(it.sizes, [&](const cuda::Four& index) {
      const int64_t place = dot(index, it.strides);
      const auto value = static_cast<float>(all[next++]);
      if (it.element == Tensor::Element::kBf16) {
        static_cast<bf16*>(addresses_[i])[place] = to_bf16(value);
      } else {
        static_cast<float*>(addresses_[i])[place] = value;
      }
    });
  }

  std::vector<double> done(const cuda::GraphStep& step) {
    switch (step.operation) {
      case Operation::kProduct:
        return product(step);
      case Operation::kSum:
      case Operation::kLargest:
        return reduced(step);
      case Operation::kView:
        return viewed(step);
      default:
        break;
    }
    std::vector<double> result;
    const cuda::Four& sizes = tensor(step.result).sizes;
    for_each(sizes, [&](const cuda::Four& index) {
      if (step.operation == Operation::kPlaceAlong) {
        result.push_back(static_cast<double>(index[static_cast<size_t>(step.axis)]));
        return;
      }
      const double x = at(step.x, index, sizes);
      const double y = step.y < 0 ? 0 : at(step.y, index, sizes);
      const bool holds = step.condition >= 0 && at(step.condition, index, sizes) != 0;
      result.push_back(value(step.operation, x, y, holds));
    });
    return result;
  }

  static double value(Operation operation, double x, double y, bool holds) {
    switch (operation) {
      case Operation::kMultiply:
        return x * y;
      case Operation::kAdd:
        return x + y;
      case Operation::kSubtract:
        return x - y;
      case Operation::kDivide:
        return x / y;
      case Operation::kExponential:
        return std::exp(x);
      case Operation::kLogarithm:
        return std::log(x);
      case Operation::kAtLeast:
        return x >= y ? 1 : 0;
      case Operation::kSelect:
        return holds ? x : y;
      default:
        break;
    }
    GNOMON_ASSERT(false);
    return 0;
  }

  std::vector<double> product(const cuda::GraphStep& step) {
    const cuda::Four& sizes = tensor(step.result).sizes;
    const cuda::Four &left = tensor(step.x).sizes, &right = tensor(step.y).sizes;
    GNOMON_ASSERT(left[3] == right[2] && left[2] == sizes[2] && right[3] == sizes[3]);
    std::vector<double> result;
    for_each(sizes, [&](const cuda::Four& i) {
      double sum = 0;
      for (int64_t term = 0; term < left[3]; ++term) {
        sum += at(step.x, {i[0], i[1], i[2], term}, {sizes[0], sizes[1], left[2], left[3]}) *
               at(step.y, {i[0], i[1], term, i[3]}, {sizes[0], sizes[1], right[2], right[3]});
      }
      result.push_back(sum);
    });
    return result;
  }

  std::vector<double> reduced(const cuda::GraphStep& step) {
    const bool largest = step.operation == Operation::kLargest;
    const cuda::Four &from = tensor(step.x).sizes, &to = tensor(step.result).sizes;
    std::vector<double> result(static_cast<size_t>(to[0] * to[1] * to[2] * to[3]),
                               largest ? -HUGE_VAL : 0);
    for_each(from, [&](const cuda::Four& index) {
      int64_t place = 0;
      for (size_t axis = 0; axis < 4; ++axis) {
        place = place * to[axis] + index[axis] * to[axis] / from[axis];
      }
      double& into = result[static_cast<size_t>(place)];
      const double x = at(step.x, index, from);
      into = largest ? std::max(into, x) : into + x;
    });
    return result;
  }

  std::vector<double> viewed(const cuda::GraphStep& step) {
    std::map<int64_t, double> memory;
    const Tensor &from = tensor(step.x), &to = tensor(step.result);
    for_each(from.sizes, [&](const cuda::Four& index) {
      memory[dot(index, from.strides)] = at(step.x, index, from.sizes);
    });
    std::vector<double> result;
    for_each(to.sizes,
             [&](const cuda::Four& index) { result.push_back(memory.at(dot(index, to.strides))); });
    return result;
  }

  const cuda::OperationGraph& graph_;
  std::vector<std::vector<double>> values_;
  std::vector<void*> addresses_;
};

}  // namespace gnomon::test
