#include "cli/rehearsal/gzip.h"

#include <zlib.h>

#include <array>

#include "base/errors.h"

namespace gnomon::rehearsal {
namespace {

constexpr int kGzipWindow = MAX_WBITS + 16;  // "+ 16" is how zlib is told: a gzip header
constexpr int kMemoryLevel = 9;

// zlib does not write through next_in.
Bytef* input_of(const std::string& text) {
  return reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
}

}  // namespace

std::string gzip(const std::string& text) {
  z_stream stream{};
  GNOMON_ASSERT(deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, kGzipWindow, kMemoryLevel,
                             Z_DEFAULT_STRATEGY) == Z_OK);
  std::string bytes(deflateBound(&stream, text.size()), '\0');
  stream.next_in = input_of(text);
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_out = static_cast<uInt>(bytes.size());
  const int ended = deflate(&stream, Z_FINISH);
  bytes.resize(stream.total_out);
  deflateEnd(&stream);
  GNOMON_ASSERT(ended == Z_STREAM_END);
  return bytes;
}

std::string gunzip(const std::string& bytes, const std::string& file) {
  z_stream stream{};
  GNOMON_ASSERT(inflateInit2(&stream, kGzipWindow) == Z_OK);
  stream.next_in = input_of(bytes);
  stream.avail_in = static_cast<uInt>(bytes.size());
  std::string text;
  std::array<char, 1 << 16> part{};
  int state = Z_OK;
  while (state == Z_OK) {
    stream.next_out = reinterpret_cast<Bytef*>(part.data());
    stream.avail_out = static_cast<uInt>(part.size());
    state = inflate(&stream, Z_NO_FLUSH);
    text.append(part.data(), part.size() - stream.avail_out);
  }
  const auto taken = static_cast<long long>(stream.total_in);
  inflateEnd(&stream);
  if (state != Z_STREAM_END) {
    throw FormatError(file, taken, "no gzip data", "a whole gzip file");
  }
  return text;
}

}  // namespace gnomon::rehearsal
