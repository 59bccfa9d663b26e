// Descriptions that cuBLASLt makes and takes back. Only for files of this folder.
#pragma once

#include <cublasLt.h>

namespace gnomon::cuda {

template <class T, cublasStatus_t (*kDestroy)(T)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (it_ != nullptr) kDestroy(it_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  T* put() { return &it_; }
  T get() const { return it_; }

 private:
  T it_ = nullptr;
};

using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

}  // namespace gnomon::cuda
