#include "kernels/cuda/attention_choice.h"

#include <fmt/format.h>

#include <string_view>

#include "base/errors.h"
#ifdef GNOMON_CUDNN_FOUND
#include "kernels/cuda/cudnn_attention.h"
#endif

namespace gnomon::cuda {
namespace {

#ifdef GNOMON_CUDNN_FOUND
std::unique_ptr<Attention> of_cudnn(AttentionChoice choice, Memory& memory, Stream stream,
                                    const std::function<void(const std::string&)>& warn) {
  return make_cudnn_attention(choice == AttentionChoice::kCudnn, memory, stream, warn);
}
#else
std::unique_ptr<Attention> of_cudnn(AttentionChoice, Memory&, Stream,
                                    const std::function<void(const std::string&)>&) {
  throw Error("this build has no cuDNN: its headers were not found");
}
#endif

}  // namespace

AttentionChoice attention_choice(const char* text) {
  const std::string_view choice = text == nullptr ? "" : text;
  if (choice.empty()) return AttentionChoice::kBest;
  if (choice == "own") return AttentionChoice::kOwn;
  if (choice == "cudnn") return AttentionChoice::kCudnn;
  throw ConfigError("", 0, "GNOMON_ATTENTION", std::string(choice), "own or cudnn");
}

std::unique_ptr<Attention> make_attention(AttentionChoice choice, Memory& memory, Stream stream,
                                          const std::function<void(const std::string&)>& warn) {
  if (choice == AttentionChoice::kOwn) return std::make_unique<OwnAttention>();
  try {
    return of_cudnn(choice, memory, stream, warn);
  } catch (const Error& error) {
    if (choice == AttentionChoice::kCudnn) throw;
    warn(fmt::format("Our own attention is used, which is much slower than cuDNN's: {}",
                     error.what()));
  }
  return std::make_unique<OwnAttention>();
}

}  // namespace gnomon::cuda
