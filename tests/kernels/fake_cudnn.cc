#include "tests/kernels/fake_cudnn.h"

#include <cudnn_graph.h>

#include <cstring>

namespace {

using gnomon::test::FakeCudnn;
using gnomon::test::FakeRun;
using gnomon::test::FakeTensor;

// Everything that is set, by attribute: bytes, and descriptors as they are.
struct Fake {
  cudnnBackendDescriptorType_t type;
  std::map<int, std::vector<std::byte>> values = {};
  // Set in a proposal, and in a plan made of one, which outlives the graph's descriptors.
  std::map<int64_t, FakeTensor> tensors = {};
  size_t operations = 0;

  template <class T>
  std::vector<T> get(cudnnBackendAttributeName_t name) const {
    const auto found = values.find(name);
    if (found == values.end()) return {};
    std::vector<T> result(found->second.size() / sizeof(T));
    std::memcpy(result.data(), found->second.data(), result.size() * sizeof(T));
    return result;
  }
  bool flag(cudnnBackendAttributeName_t name) const { return get<char>(name).at(0) != 0; }
};

struct FakeHandle {
  void* stream = nullptr;
};

FakeCudnn& state() {
  static FakeCudnn it;
  return it;
}

int64_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
      return sizeof(bool);
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    default:
      return 4;
  }
}

// What a graph's operations refer to: every tensor below `it`.
void collect(const Fake& it, std::map<int64_t, FakeTensor>& tensors) {
  if (it.type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
    tensors[it.get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID).at(0)] = {
        .sizes = it.get<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
        .strides = it.get<int64_t>(CUDNN_ATTR_TENSOR_STRIDES),
        .is_virtual = it.flag(CUDNN_ATTR_TENSOR_IS_VIRTUAL),
        .by_value = it.flag(CUDNN_ATTR_TENSOR_IS_BY_VALUE)};
  }
  const auto below = [&](int first, int last) {
    for (const auto& [name, bytes] : it.values) {
      if (name < first || name > last) continue;
      const auto attribute = static_cast<cudnnBackendAttributeName_t>(name);
      for (const Fake* each : it.get<const Fake*>(attribute)) collect(*each, tensors);
    }
  };
  switch (it.type) {
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      return below(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      return below(CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
      return below(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      return below(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      return below(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    default:
      return;
  }
}

cudnnStatus_t finish_plan(Fake& plan) {
  if (state().plan_status != 0) return static_cast<cudnnStatus_t>(state().plan_status);
  const Fake* proposal = plan.get<const Fake*>(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).at(0);
  plan.tensors = proposal->tensors;
  plan.operations = proposal->operations;
  ++state().plans;
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

FakeCudnn* gnomon_fake_cudnn() { return &state(); }

size_t CUDNNWINAPI cudnnGetVersion() { return state().version; }
const char* CUDNNWINAPI cudnnGetErrorString(cudnnStatus_t) { return "A_STATUS"; }
void CUDNNWINAPI cudnnGetLastErrorString(char* message, size_t size) {
  std::strncpy(message, "the fake says no", size);
}

cudnnStatus_t CUDNNWINAPI cudnnCreate(cudnnHandle_t* handle) {
  *handle = reinterpret_cast<cudnnHandle_t>(new FakeHandle);
  ++state().handles;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t CUDNNWINAPI cudnnDestroy(cudnnHandle_t handle) {
  delete reinterpret_cast<FakeHandle*>(handle);
  --state().handles;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t CUDNNWINAPI cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  reinterpret_cast<FakeHandle*>(handle)->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                       cudnnBackendDescriptor_t* descriptor) {
  *descriptor = new Fake{.type = type};
  ++state().descriptors;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t CUDNNWINAPI cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Fake*>(descriptor);
  --state().descriptors;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t CUDNNWINAPI cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                                   cudnnBackendAttributeName_t name,
                                                   cudnnBackendAttributeType_t type, int64_t count,
                                                   const void* values) {
  const auto* bytes = static_cast<const std::byte*>(values);
  static_cast<Fake*>(descriptor)->values[name].assign(bytes, bytes + count * size_of(type));
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t CUDNNWINAPI cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  auto* it = static_cast<Fake*>(descriptor);
  if (it->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) return finish_plan(*it);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t CUDNNWINAPI cudnnBackendGetAttribute(const cudnnBackendDescriptor_t descriptor,
                                                   cudnnBackendAttributeName_t name,
                                                   cudnnBackendAttributeType_t, int64_t,
                                                   int64_t* count, void* values) {
  const auto* it = static_cast<const Fake*>(descriptor);
  *count = 1;
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
    *static_cast<int64_t*>(values) = state().workspace_bytes;
    return CUDNN_STATUS_SUCCESS;
  }
  if (name == CUDNN_ATTR_ENGINECFG_ENGINE) return CUDNN_STATUS_SUCCESS;
  if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) {
    *count = std::ssize(state().notes);
    if (!state().notes.empty()) {
      std::memcpy(values, state().notes.data(), state().notes.size() * sizeof(int32_t));
    }
    return CUDNN_STATUS_SUCCESS;
  }
  if (name != CUDNN_ATTR_ENGINEHEUR_RESULTS) return CUDNN_STATUS_BAD_PARAM;
  const Fake* graph = it->get<const Fake*>(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH).at(0);
  Fake& proposal = *static_cast<Fake**>(values)[0];
  collect(*graph, proposal.tensors);
  proposal.operations = graph->get<const Fake*>(CUDNN_ATTR_OPERATIONGRAPH_OPS).size();
  if (state().refuses(proposal.tensors.begin()->second)) *count = 0;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t CUDNNWINAPI cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                              cudnnBackendDescriptor_t pack) {
  const auto* made = static_cast<Fake*>(plan);
  const auto* given = static_cast<Fake*>(pack);
  FakeRun run{.tensors = made->tensors, .operations = made->operations};
  run.stream = reinterpret_cast<FakeHandle*>(handle)->stream;
  run.workspace = given->get<std::byte*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE).at(0);
  const auto ids = given->get<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto addresses = given->get<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  if (ids.size() != addresses.size()) return CUDNN_STATUS_BAD_PARAM;
  for (size_t i = 0; i < ids.size(); ++i) run.addresses[ids[i]] = addresses[i];
  state().run(run);
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
