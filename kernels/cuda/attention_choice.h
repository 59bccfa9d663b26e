// Whose attention is used: cuDNN's fused kernels where they are there and take the shape, otherwise
// our own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kernels/cuda/attention.h"
#include "kernels/memory.h"

namespace gnomon::cuda {

enum class AttentionChoice {
  kBest,   // cuDNN's, or our own with a warning
  kOwn,    // ours
  kCudnn,  // cuDNN's, or an error
};

// Parses the environment variable GNOMON_ATTENTION: "own", "cudnn"; not set or empty is kBest.
// Throws ConfigError for anything else.
AttentionChoice attention_choice(const char* text);

// `warn` is called with sentences, at most one for the library and one for each shape that is
// refused. `memory`, which is the device's, gives the workspace and outlives the result. Throws
// MissingLibrary, or Error for a library that is too old, when cuDNN's is asked for; the same is
// thrown by what is returned, for a shape that is refused.
std::unique_ptr<Attention> make_attention(AttentionChoice choice, Memory& memory, Stream stream,
                                          const std::function<void(const std::string&)>& warn);

}  // namespace gnomon::cuda
