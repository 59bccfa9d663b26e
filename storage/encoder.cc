#include "storage/encoder.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "storage/documents.h"

namespace gnomon {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr size_t kBatchBytes = size_t{16} << 20;

}  // namespace

ParallelEncoder::ParallelEncoder(const Tokenizer& tokenizer, Sink sink)
    : tokenizer_(tokenizer), sink_(std::move(sink)) {}

void ParallelEncoder::add(int stream, std::string_view text, std::shared_ptr<const void> owner) {
  while (!text.empty()) {
    size_t cut = cut_before(text, kPieceBytes);
    pieces_.push_back({stream, text.substr(0, cut), owner, cut == text.size(), {}});
    text.remove_prefix(cut);
    bytes_ += cut;
    if (bytes_ >= kBatchBytes) flush();
  }
}

void ParallelEncoder::flush() {
  encode_pieces();
  for (const Piece& piece : pieces_) sink_(piece.stream, piece.tokens);
  pieces_.clear();
  bytes_ = 0;
}

void ParallelEncoder::encode_pieces() {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  auto work = [&] {
    try {
      for (size_t i = next++; i < pieces_.size(); i = next++) {
        Piece& piece = pieces_[i];
        tokenizer_.encode(piece.text, piece.tokens);
        if (piece.last) piece.tokens.push_back(tokenizer_.end_of_text());
      }
    } catch (...) {
      std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    size_t count = std::min<size_t>(std::thread::hardware_concurrency(), pieces_.size());
    for (size_t i = 1; i < count; ++i) threads.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace gnomon
