// CUDA's execution model for one file of kernels at a time, on the CPU and on one thread of it:
// blocks one after another, the threads of a block as fibers, which change places where they wait
// for each other. Slow, exact, and good for tests only. Not emulated: several streams, memory
// ordering, anything that takes a device's own instructions.
#pragma once

#include <algorithm>
#include <bit>
#include <boost/context/fiber.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/launch.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict

namespace gnomon::cuda {

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};

namespace emulation {

// Stacks that are used again: a block has hundreds of threads.
class StackPool {
 public:
  static constexpr size_t kBytes = size_t{64} << 10;

  boost::context::stack_context allocate() {
    if (free_.empty()) free_.push_back(std::make_unique_for_overwrite<std::byte[]>(kBytes));
    boost::context::stack_context stack;
    stack.size = kBytes;
    stack.sp = free_.back().release() + kBytes;
    free_.pop_back();
    return stack;
  }
  void deallocate(boost::context::stack_context& stack) {
    free_.emplace_back(static_cast<std::byte*>(stack.sp) - kBytes);
  }

 private:
  std::vector<std::unique_ptr<std::byte[]>> free_;
};
inline StackPool stacks;

struct PooledStack {
  boost::context::stack_context allocate() { return stacks.allocate(); }
  void deallocate(boost::context::stack_context& stack) { stacks.deallocate(stack); }
};

enum class Wait { kNothing, kWarp, kBlock };

// One block at a time. A barrier opens when all threads of its warp or block that have not ended
// wait at it; a block whose threads wait for each other for ever ends the program.
class Block {
 public:
  template <class Body>
  void run(int count, Body&& body) {
    threads_.clear();
    threads_.resize(static_cast<size_t>(count));
    exchange_.assign(static_cast<size_t>(count), 0);
    for (int i = 0; i < count; ++i) {
      threads_[static_cast<size_t>(i)].fiber = boost::context::fiber(
          std::allocator_arg, PooledStack(), [this, i, &body](boost::context::fiber&& back) {
            back_ = std::move(back);
            body();
            threads_[static_cast<size_t>(i)].ended = true;
            return std::move(back_);
          });
    }
    while (resume_all() || open_barriers()) {
    }
    for (const Thread& thread : threads_) {
      if (thread.ended) continue;
      std::fputs("a barrier that not all threads of the block or warp come to\n", stderr);
      std::abort();
    }
  }

  int current() const { return current_; }
  void wait(Wait at) {
    threads_[static_cast<size_t>(current_)].wait = at;
    back_ = std::move(back_).resume();
  }
  uint64_t& slot(int thread) { return exchange_[static_cast<size_t>(thread)]; }
  int count() const { return static_cast<int>(threads_.size()); }

 private:
  struct Thread {
    boost::context::fiber fiber;
    Wait wait = Wait::kNothing;
    bool ended = false;
  };

  // True when any could go on.
  bool resume_all() {
    bool any = false;
    for (current_ = 0; current_ < count(); ++current_) {
      Thread& thread = threads_[static_cast<size_t>(current_)];
      if (thread.ended || thread.wait != Wait::kNothing) continue;
      thread.fiber = std::move(thread.fiber).resume();
      any = true;
    }
    return any;
  }
  bool open_barriers() {
    bool any = open(0, count(), Wait::kBlock);
    for (int warp = 0; warp < count(); warp += 32) {
      any = open(warp, std::min(warp + 32, count()), Wait::kWarp) || any;
    }
    return any;
  }
  bool open(int begin, int end, Wait barrier) {
    bool any = false;
    for (int i = begin; i < end; ++i) {
      const Thread& thread = threads_[static_cast<size_t>(i)];
      if (thread.ended) continue;
      if (thread.wait != barrier) return false;
      any = true;
    }
    for (int i = begin; i < end; ++i) threads_[static_cast<size_t>(i)].wait = Wait::kNothing;
    return any;
  }

  std::vector<Thread> threads_;
  std::vector<uint64_t> exchange_;  // one value of each thread
  boost::context::fiber back_;
  int current_ = 0;
};

// What is launched goes here and is not run, while there is one.
inline std::vector<std::function<void()>>* recording = nullptr;

// Now, or when what is recorded is run.
template <class Work>
void now_or_later(Work work) {
  if (recording != nullptr) {
    recording->push_back(std::move(work));
  } else {
    work();
  }
}

// Memory of a block, as its kernel declares it. What is read before it is written is the poison: a
// NaN, or the largest number of its kind.
inline constexpr std::byte kPoison{0xFF};
inline std::vector<std::pair<std::byte*, size_t>> declared;

template <class T>
class SharedMemory {
 public:
  SharedMemory() {
    std::fill(std::begin(bytes_), std::end(bytes_), kPoison);
    declared.emplace_back(bytes_, sizeof(T));
  }
  T& get() { return *reinterpret_cast<T*>(bytes_); }

 private:
  alignas(T) std::byte bytes_[sizeof(T)];
};

inline Block block;
inline Index3 block_index, block_size, grid_size;
inline std::vector<std::byte> shared;

struct ThreadIndex {
  struct Value {
    operator unsigned() const { return static_cast<unsigned>(block.current()); }
  } x;
};

template <class T>
T exchanged(T value, int from) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  const int me = block.current();
  std::memcpy(&block.slot(me), &value, sizeof(T));
  block.wait(Wait::kWarp);
  T found{};
  std::memcpy(&found, &block.slot(from < block.count() ? from : me), sizeof(T));
  block.wait(Wait::kWarp);
  return found;
}

}  // namespace emulation
}  // namespace gnomon::cuda

inline gnomon::cuda::emulation::ThreadIndex threadIdx;
inline auto& blockIdx = gnomon::cuda::emulation::block_index;
inline auto& blockDim = gnomon::cuda::emulation::block_size;
inline auto& gridDim = gnomon::cuda::emulation::grid_size;

inline void __syncthreads() {
  gnomon::cuda::emulation::block.wait(gnomon::cuda::emulation::Wait::kBlock);
}
inline void __syncwarp(unsigned = 0) {
  gnomon::cuda::emulation::block.wait(gnomon::cuda::emulation::Wait::kWarp);
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return gnomon::cuda::emulation::exchanged(value, gnomon::cuda::emulation::block.current() ^ mask);
}
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  const int me = gnomon::cuda::emulation::block.current();
  return gnomon::cuda::emulation::exchanged(value, me - me % 32 + lane);
}
template <class T>
T __shfl_down_sync(unsigned, T value, int distance) {
  const int me = gnomon::cuda::emulation::block.current();
  const int from = me % 32 + distance < 32 ? me + distance : me;
  return gnomon::cuda::emulation::exchanged(value, from);
}

inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long value) {
  const unsigned long long before = *at;
  *at += value;
  return before;
}
inline uint32_t atomicAdd(uint32_t* at, uint32_t value) {
  const uint32_t before = *at;
  *at += value;
  return before;
}
inline uint32_t atomicMax(uint32_t* at, uint32_t value) {
  const uint32_t before = *at;
  *at = before < value ? value : before;
  return before;
}

namespace gnomon::cuda {

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(emulation::shared.data());
}

namespace emulation {

// What another block left there must not be relied on.
inline void poison_shared() {
  std::fill(shared.begin(), shared.end(), kPoison);
  for (const auto& [memory, bytes] : declared) std::fill_n(memory, bytes, kPoison);
}

template <class Kernel>
void run_grid(const Grid& grid, Kernel kernel) {
  emulation::block_size = {static_cast<unsigned>(grid.threads), 1, 1};
  emulation::grid_size = {static_cast<unsigned>(grid.blocks_x),
                          static_cast<unsigned>(grid.blocks_y),
                          static_cast<unsigned>(grid.blocks_z)};
  emulation::shared.resize(static_cast<size_t>(grid.shared_bytes));
  for (unsigned z = 0; z < emulation::grid_size.z; ++z) {
    for (unsigned y = 0; y < emulation::grid_size.y; ++y) {
      for (unsigned x = 0; x < emulation::grid_size.x; ++x) {
        emulation::block_index = {x, y, z};
        poison_shared();
        emulation::block.run(grid.threads, kernel);
      }
    }
  }
}

// How often each kernel was run, by its name.
inline std::map<std::string, int64_t> launched;

}  // namespace emulation

template <class... P, class... A>
void launch(const char* name, void (*kernel)(P...), const Grid& grid, Stream, A... args) {
  emulation::now_or_later([=] {
    ++emulation::launched[name];
    emulation::run_grid(grid, [&] { kernel(static_cast<P>(args)...); });
  });
}

}  // namespace gnomon::cuda
