// A library by cuDNN's name that keeps what it is told and, when it is asked to run a plan, hands
// that to the test. It is found by its functions, as cuDNN is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

namespace gnomon::test {

struct FakeTensor {
  std::vector<int64_t> sizes, strides;
  bool is_virtual = false, by_value = false;
};

struct FakeRun {
  std::map<int64_t, FakeTensor> tensors;  // by their ids; of the plan's graph
  size_t operations = 0;
  std::map<int64_t, void*> addresses = {};
  std::byte* workspace = nullptr;
  void* stream = nullptr;  // of the handle
};

struct FakeCudnn {
  size_t version = 91900;
  int64_t workspace_bytes = 512;
  // True when no kernel is found for tensors, the first of which is given.
  std::function<bool(const FakeTensor&)> refuses = [](const FakeTensor&) { return false; };
  // What its engine notes of itself.
  std::vector<int32_t> notes = {};
  // A status that making a plan ends with, when not 0.
  int plan_status = 0;
  std::function<void(const FakeRun&)> run = [](const FakeRun&) {};
  int plans = 0;                     // made so far
  int handles = 0, descriptors = 0;  // that live
};

}  // namespace gnomon::test

// The library's only one.
extern "C" gnomon::test::FakeCudnn* gnomon_fake_cudnn();
