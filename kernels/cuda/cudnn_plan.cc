#include "kernels/cuda/cudnn_plan.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "base/errors.h"
#include "kernels/cuda/cudnn.h"

namespace gnomon::cuda {
namespace {

constexpr int64_t kAlignmentBytes = 16;
constexpr int64_t kProposalsMost = 16;

int64_t id_of(size_t tensor) { return static_cast<int64_t>(tensor) + 1; }

cudnnDataType_t type_of(GraphTensor::Element element) {
  switch (element) {
    case GraphTensor::Element::kBf16:
      return CUDNN_DATA_BFLOAT16;
    case GraphTensor::Element::kFp32:
      return CUDNN_DATA_FLOAT;
    case GraphTensor::Element::kInt32:
      return CUDNN_DATA_INT32;
    case GraphTensor::Element::kBool:
      return CUDNN_DATA_BOOLEAN;
  }
  GNOMON_ASSERT(false);
  return CUDNN_DATA_FLOAT;
}

Descriptor describe(const GraphTensor& tensor, int64_t id) {
  Descriptor it(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const cudnnDataType_t type = type_of(tensor.element);
  const bool between = tensor.place == GraphTensor::Place::kBetween;
  const bool number = tensor.place == GraphTensor::Place::kNumber;
  it.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  it.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, tensor.sizes.data());
  it.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, tensor.strides.data());
  it.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
  it.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &kAlignmentBytes);
  it.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &between);
  it.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &number);
  it.finish();
  return it;
}

cudnnPointwiseMode_t mode_of(GraphOperation operation) {
  switch (operation) {
    case GraphOperation::kMultiply:
      return CUDNN_POINTWISE_MUL;
    case GraphOperation::kAdd:
      return CUDNN_POINTWISE_ADD;
    case GraphOperation::kSubtract:
      return CUDNN_POINTWISE_SUB;
    case GraphOperation::kDivide:
      return CUDNN_POINTWISE_DIV;
    case GraphOperation::kExponential:
      return CUDNN_POINTWISE_EXP;
    case GraphOperation::kLogarithm:
      return CUDNN_POINTWISE_LOG;
    case GraphOperation::kPlaceAlong:
      return CUDNN_POINTWISE_GEN_INDEX;
    case GraphOperation::kAtLeast:
      return CUDNN_POINTWISE_CMP_GE;
    case GraphOperation::kSelect:
      return CUDNN_POINTWISE_BINARY_SELECT;
    default:
      break;
  }
  GNOMON_ASSERT(false);
  return CUDNN_POINTWISE_MUL;
}

// Steps refer to descriptors of their own, which must live as long as the graph's.
class Steps {
 public:
  explicit Steps(const OperationGraph& graph) {
    for (size_t i = 0; i < graph.tensors.size(); ++i) {
      tensors_.push_back(describe(graph.tensors[i], id_of(i)));
    }
    for (const GraphStep& step : graph.steps) {
      steps_.push_back(described(step));
      steps_.back().finish();
    }
  }
  std::vector<cudnnBackendDescriptor_t> get() const {
    std::vector<cudnnBackendDescriptor_t> all;
    for (const Descriptor& step : steps_) all.push_back(step.get());
    return all;
  }

 private:
  const Descriptor& tensor(int number) const { return tensors_[static_cast<size_t>(number)]; }

  Descriptor described(const GraphStep& step) {
    switch (step.operation) {
      case GraphOperation::kProduct:
        return product(step);
      case GraphOperation::kSum:
        return reduction(step, CUDNN_REDUCE_TENSOR_ADD);
      case GraphOperation::kLargest:
        return reduction(step, CUDNN_REDUCE_TENSOR_MAX);
      case GraphOperation::kView:
        return view(step);
      default:
        return by_value(step);
    }
  }
  Descriptor product(const GraphStep& step) {
    Descriptor& how = details_.emplace_back(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &kFp32);
    how.finish();
    Descriptor it(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    it.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, tensor(step.x));
    it.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, tensor(step.y));
    it.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, tensor(step.result));
    it.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    return it;
  }
  Descriptor reduction(const GraphStep& step, cudnnReduceTensorOp_t operation) {
    Descriptor& how = details_.emplace_back(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &operation);
    how.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &kFp32);
    how.set(CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC, CUDNN_TYPE_BOOLEAN, 1, &kYes);
    how.finish();
    Descriptor it(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    it.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, tensor(step.x));
    it.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, tensor(step.result));
    it.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    return it;
  }
  Descriptor view(const GraphStep& step) {
    Descriptor it(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    it.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, tensor(step.x));
    it.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, tensor(step.result));
    return it;
  }
  Descriptor by_value(const GraphStep& step) {
    const cudnnPointwiseMode_t mode = mode_of(step.operation);
    Descriptor& how = details_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1,
            step.operation == GraphOperation::kAtLeast ? &kBool : &kFp32);
    if (step.operation == GraphOperation::kPlaceAlong) {
      const int64_t axis = step.axis;
      how.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    }
    how.finish();
    Descriptor it(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    it.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    it.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensor(step.x));
    if (step.y >= 0) it.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, tensor(step.y));
    if (step.condition >= 0) it.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, tensor(step.condition));
    it.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensor(step.result));
    return it;
  }

  static constexpr bool kYes = true;
  static constexpr cudnnDataType_t kFp32 = CUDNN_DATA_FLOAT, kBool = CUDNN_DATA_BOOLEAN;
  std::vector<Descriptor> tensors_, details_, steps_;
};

// The library's proposals for the graph, best first.
std::vector<Descriptor> proposals(const Descriptor& graph, const Descriptor* properties) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (properties != nullptr) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *properties);
  heuristics.finish();
  std::vector<Descriptor> found;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < kProposalsMost; ++i) {
    found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    raw.push_back(found.back().get());
  }
  int64_t count = 0;
  check(GNOMON_CUDNN(cudnnBackendGetAttribute)(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                               CUDNN_TYPE_BACKEND_DESCRIPTOR, kProposalsMost,
                                               &count, raw.data()),
        "cudnnBackendGetAttribute of heuristics");
  found.resize(static_cast<size_t>(count));
  return found;
}

Descriptor properties_of(const std::string& text) {
  Descriptor it(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  it.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, std::ssize(text), text.data());
  it.finish();
  return it;
}

// True when the same operands give the same bits each time, by the note of the proposal's engine.
bool repeats(const Descriptor& proposal) {
  const Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  int64_t count = 0;
  check(GNOMON_CUDNN(cudnnBackendGetAttribute)(proposal.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                               CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw),
        "cudnnBackendGetAttribute of a proposal's engine");
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  check(GNOMON_CUDNN(cudnnBackendGetAttribute)(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                               CUDNN_TYPE_NUMERICAL_NOTE, std::ssize(notes), &count,
                                               notes.data()),
        "cudnnBackendGetAttribute of an engine's numerical notes");
  const auto known = std::span(notes).first(static_cast<size_t>(count));
  return std::ranges::find(known, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) == known.end();
}

// What is not supported is left out; anything else, a full memory say, must not change the choice.
Descriptor first_that_can_be_made(const std::vector<Descriptor>& proposals,
                                  const PlanTarget& target, const Descriptor& properties) {
  std::string why = "no kernel is proposed";
  for (const Descriptor& proposal : proposals) {
    if (!repeats(proposal)) {
      why = "only kernels that give other bits each time are proposed";
      continue;
    }
    try {
      Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, proposal);
      if (target.handle == nullptr) {
        plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, properties);
      } else {
        plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
      }
      plan.finish();
      return plan;
    } catch (const NotSupported& error) {
      why = error.what();
    }
  }
  throw NotSupported(why);
}

}  // namespace

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  check(GNOMON_CUDNN(cudnnBackendCreateDescriptor)(type, &it_), "cudnnBackendCreateDescriptor");
}

Descriptor::~Descriptor() {
  if (it_ != nullptr) GNOMON_CUDNN(cudnnBackendDestroyDescriptor)(it_);
}

void Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                     int64_t count, const void* values) {
  check(GNOMON_CUDNN(cudnnBackendSetAttribute)(it_, name, type, count, values),
        "cudnnBackendSetAttribute");
}

void Descriptor::set(cudnnBackendAttributeName_t name, const Descriptor& value) {
  const cudnnBackendDescriptor_t it = value.get();
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &it);
}

void Descriptor::finish() {
  check(GNOMON_CUDNN(cudnnBackendFinalize)(it_), "cudnnBackendFinalize");
}

CudnnPlan::CudnnPlan(const OperationGraph& graph, const PlanTarget& target) {
  const Steps steps(graph);
  const std::vector<cudnnBackendDescriptor_t> all = steps.get();
  Descriptor operations(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  operations.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::ssize(all),
                 all.data());
  if (target.handle != nullptr) {
    operations.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
  }
  operations.finish();
  Descriptor properties;
  if (target.handle == nullptr) properties = properties_of(target.properties);
  plan_ = first_that_can_be_made(
      proposals(operations, target.handle == nullptr ? &properties : nullptr), target, properties);
  int64_t count = 0;
  check(
      GNOMON_CUDNN(cudnnBackendGetAttribute)(plan_.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                             CUDNN_TYPE_INT64, 1, &count, &workspace_bytes_),
      "cudnnBackendGetAttribute of a plan's workspace");
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const GraphTensor& tensor = graph.tensors[i];
    if (tensor.place == GraphTensor::Place::kMemory) memory_ids_.push_back(id_of(i));
    if (tensor.place != GraphTensor::Place::kNumber) continue;
    number_ids_.push_back(id_of(i));
    numbers_.push_back(tensor.number);
  }
}

std::string CudnnPlan::kernel() const {
  const auto get = [&](int64_t room, int64_t* count, char* to) {
    check(GNOMON_CUDNN(cudnnBackendGetAttribute)(plan_.get(),
                                                 CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                                 CUDNN_TYPE_CHAR, room, count, to),
          "cudnnBackendGetAttribute of a plan's description");
  };
  int64_t count = 0;
  get(0, &count, nullptr);
  std::string text(static_cast<size_t>(count), '\0');
  get(count, &count, text.data());
  constexpr std::string_view kKey = "\"kernelName\":\"";
  const size_t key = text.find(kKey);
  if (key == std::string::npos) return "";
  const size_t begin = key + kKey.size();
  return text.substr(begin, text.find('"', begin) - begin);
}

void CudnnPlan::run(cudnnHandle_t handle, const std::vector<void*>& memory,
                    std::byte* workspace) const {
  GNOMON_ASSERT(memory.size() == memory_ids_.size());
  std::vector<int64_t> ids = memory_ids_;
  std::vector<const void*> addresses(memory.begin(), memory.end());
  for (size_t i = 0; i < numbers_.size(); ++i) {
    ids.push_back(number_ids_[i]);
    addresses.push_back(&numbers_[i]);
  }
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, std::ssize(ids), ids.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, std::ssize(addresses),
           addresses.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  pack.finish();
  check(GNOMON_CUDNN(cudnnBackendExecute)(handle, plan_.get(), pack.get()), "cudnnBackendExecute");
}

}  // namespace gnomon::cuda
