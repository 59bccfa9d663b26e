#include "storage/token_shards.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>

#include "base/errors.h"
#include "base/files.h"
#include "storage/hashed_file.h"

namespace gnomon {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are little-endian");

constexpr size_t kWriteBufferBytes = size_t{1} << 20;
constexpr int64_t kShardTokensMax = std::numeric_limits<int32_t>::max();

using ShardHeader = std::array<int32_t, 256>;
static_assert(sizeof(ShardHeader) == kShardHeaderBytes);

struct Shard {
  std::filesystem::path path;
  FileDescriptor fd;
  bool wide = false;
  int64_t tokens = 0;
  int64_t first = 0;  // its first token's offset in the concatenation
};

int64_t shard_bytes(const FileDescriptor& fd, const std::filesystem::path& path) {
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) throw SystemError("stat", path.string(), errno);
  if (S_ISDIR(status.st_mode)) throw SystemError("read", path.string(), EISDIR);
  if (!S_ISREG(status.st_mode)) throw SystemError("read", path.string(), ENODEV);
  return status.st_size;
}

// The shard's bytes [offset, offset + bytes). They may have gone since the shard was opened.
void read_exactly(const FileDescriptor& fd, const std::filesystem::path& path, int64_t offset,
                  void* out, size_t bytes) {
  char* next = static_cast<char*>(out);
  for (size_t left = bytes; left > 0;) {
    ssize_t count = ::pread(fd.get(), next, left, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw SystemError("read", path.string(), errno);
    if (count == 0)
      throw FormatError(path.string(), offset, "the end of the file",
                        fmt::format("{} more bytes, which were there when it was opened", left));
    next += count;
    offset += count;
    left -= static_cast<size_t>(count);
  }
}

Shard open_shard(const std::filesystem::path& path) {
  FileDescriptor fd = FileDescriptor::open(path, O_RDONLY);
  const std::string name = path.string();
  const int64_t bytes = shard_bytes(fd, path);
  if (bytes < kShardHeaderBytes)
    throw FormatError(name, bytes, "the end of the file",
                      fmt::format("a shard header of {} bytes", kShardHeaderBytes));
  ShardHeader header;
  read_exactly(fd, path, 0, header.data(), sizeof header);
  bool wide = header[0] == kShardMagic32;
  if (!wide && header[0] != kShardMagic16)
    throw FormatError(
        name, 0, fmt::format("magic {}", header[0]),
        fmt::format("{} (uint16 tokens) or {} (uint32 tokens)", kShardMagic16, kShardMagic32));
  int32_t version = wide ? kShardVersion32 : kShardVersion16;
  if (header[1] != version)
    throw FormatError(name, 4, fmt::format("version {}", header[1]), fmt::format("{}", version));
  if (header[2] < 0)
    throw FormatError(name, 8, fmt::format("a count of {} tokens", header[2]), "0 or more");
  int64_t tokens = header[2];
  int64_t expected = kShardHeaderBytes + tokens * (wide ? 4 : 2);
  if (bytes != expected)
    throw FormatError(
        name, std::min(bytes, expected), fmt::format("a file of {} bytes", bytes),
        fmt::format("{} bytes for the {} tokens that its header counts", expected, tokens));
  return {path, std::move(fd), wide, tokens, 0};
}

// Copies and checks `out.size()` tokens from token `first` on, which may be stored in 2 or 4 bytes.
// Reading into a buffer keeps a big shard out of the process's memory, and makes one that is cut
// short meanwhile an error where a mapping would end the process.
template <typename Stored>
void copy_tokens(const Shard& shard, int64_t first, uint32_t limit, std::span<int32_t> out) {
  std::array<Stored, 4096> buffer;
  for (size_t done = 0; done < out.size();) {
    std::span<int32_t> part = out.subspan(done, std::min(buffer.size(), out.size() - done));
    int64_t offset = kShardHeaderBytes +
                     (first + static_cast<int64_t>(done)) * static_cast<int64_t>(sizeof(Stored));
    read_exactly(shard.fd, shard.path, offset, buffer.data(), part.size() * sizeof(Stored));
    for (size_t i = 0; i < part.size(); ++i) {
      if (uint32_t{buffer[i]} >= limit)
        throw FormatError(shard.path.string(), offset + static_cast<int64_t>(i * sizeof(Stored)),
                          fmt::format("token {}", buffer[i]),
                          fmt::format("a token below the vocabulary of {}", limit));
      part[i] = static_cast<int32_t>(buffer[i]);
    }
    done += part.size();
  }
}

}  // namespace

struct ShardWriter::Impl {
  std::filesystem::path path;
  std::filesystem::path temporary;
  bool wide = false;
  int64_t tokens = 0;
  FileDescriptor fd;
  std::string buffer;

  void flush() {
    write_all(fd.get(), buffer, temporary);
    buffer.clear();
  }
};

ShardWriter::ShardWriter(std::filesystem::path path, bool wide) : impl_(std::make_unique<Impl>()) {
  impl_->temporary = path;
  impl_->temporary += fmt::format(".tmp{}", ::getpid());
  impl_->path = std::move(path);
  impl_->wide = wide;
  impl_->fd = FileDescriptor::open(impl_->temporary, O_RDWR | O_CREAT | O_TRUNC);
  impl_->buffer.assign(kShardHeaderBytes, '\0');  // the header comes when the count is known
}

ShardWriter::~ShardWriter() {
  if (!impl_->fd) return;
  impl_->fd.close();
  ::unlink(impl_->temporary.c_str());
}

void ShardWriter::append(std::span<const uint32_t> tokens) {
  Impl& impl = *impl_;
  if (static_cast<int64_t>(tokens.size()) > kShardTokensMax - impl.tokens)
    throw Error(
        fmt::format("{}: a shard holds at most {} tokens", impl.path.string(), kShardTokensMax));
  for (uint32_t token : tokens) {
    if (impl.wide) {
      impl.buffer.append(reinterpret_cast<const char*>(&token), sizeof token);
    } else {
      if (token > std::numeric_limits<uint16_t>::max())
        throw Error(fmt::format("{}: token {} needs a wide shard; this one takes 0 to 65535",
                                impl.path.string(), token));
      auto narrow = static_cast<uint16_t>(token);
      impl.buffer.append(reinterpret_cast<const char*>(&narrow), sizeof narrow);
    }
    if (impl.buffer.size() >= kWriteBufferBytes) impl.flush();
  }
  impl.tokens += static_cast<int64_t>(tokens.size());
}

int64_t ShardWriter::tokens() const { return impl_->tokens; }

std::string ShardWriter::finish() {
  Impl& impl = *impl_;
  GNOMON_ASSERT(impl.fd);
  impl.flush();
  ShardHeader header{};
  header[0] = impl.wide ? kShardMagic32 : kShardMagic16;
  header[1] = impl.wide ? kShardVersion32 : kShardVersion16;
  header[2] = static_cast<int32_t>(impl.tokens);
  if (::lseek(impl.fd.get(), 0, SEEK_SET) != 0)
    throw SystemError("seek in", impl.temporary.string(), errno);
  write_all(impl.fd.get(), {reinterpret_cast<const char*>(header.data()), sizeof header},
            impl.temporary);
  if (::fsync(impl.fd.get()) != 0) throw SystemError("fsync", impl.temporary.string(), errno);
  std::string hash = digest_file(impl.temporary).xxh3_128;
  if (::rename(impl.temporary.c_str(), impl.path.c_str()) != 0)
    throw SystemError("rename", impl.temporary.string(), errno);
  impl.fd.close();
  sync_path(impl.path.has_parent_path() ? impl.path.parent_path() : ".");
  return hash;
}

struct TokenShards::Impl {
  std::vector<Shard> shards;
  int64_t tokens = 0;
  int32_t vocabulary = 0;
};

TokenShards::TokenShards(const std::vector<std::filesystem::path>& paths)
    : impl_(std::make_unique<Impl>()) {
  if (paths.empty()) throw Error("no token shards given; expected at least one file");
  for (const std::filesystem::path& path : paths) {
    Shard& shard = impl_->shards.emplace_back(open_shard(path));
    shard.first = impl_->tokens;
    impl_->tokens += shard.tokens;
  }
}

TokenShards::~TokenShards() = default;
TokenShards::TokenShards(TokenShards&&) noexcept = default;
TokenShards& TokenShards::operator=(TokenShards&&) noexcept = default;

int64_t TokenShards::tokens() const { return impl_->tokens; }
void TokenShards::set_vocabulary(int32_t vocabulary) { impl_->vocabulary = vocabulary; }
int32_t TokenShards::vocabulary() const { return impl_->vocabulary; }

void TokenShards::read(int64_t offset, std::span<int32_t> out) const {
  auto wanted = static_cast<int64_t>(out.size());
  if (offset < 0 || offset > impl_->tokens || wanted > impl_->tokens - offset)
    throw Error(fmt::format("{} tokens from {} on asked for; the shards have {}", wanted, offset,
                            impl_->tokens));
  // Without a vocabulary, a token must still fit into the int32 it is copied to.
  uint32_t limit =
      impl_->vocabulary > 0 ? static_cast<uint32_t>(impl_->vocabulary) : uint32_t{1} << 31;
  auto shard = std::upper_bound(impl_->shards.begin(), impl_->shards.end(), offset,
                                [](int64_t at, const Shard& s) { return at < s.first; });
  --shard;
  while (!out.empty()) {
    int64_t first = offset - shard->first;
    int64_t count = std::min<int64_t>(static_cast<int64_t>(out.size()), shard->tokens - first);
    std::span<int32_t> part = out.first(static_cast<size_t>(count));
    if (shard->wide)
      copy_tokens<uint32_t>(*shard, first, limit, part);
    else
      copy_tokens<uint16_t>(*shard, first, limit, part);
    out = out.subspan(part.size());
    offset += count;
    ++shard;
  }
}

}  // namespace gnomon
