#include "storage/ledger_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/files.h"
#include "storage/ledger_connection.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHeaderBytes = 100;
constexpr char kMagic[] = "SQLite format 3";  // with the 0 at its end
constexpr size_t kWalHeaderBytes = 32;
constexpr size_t kFrameHeaderBytes = 24;
constexpr uint32_t kWalMagic = 0x377f0682;  // the last bit: checksums over big-endian words
constexpr uint32_t kWalFormat = 3007000;

[[noreturn]] void refuse(const fs::path& file, const std::string& what, int code = SQLITE_CORRUPT) {
  throw LedgerError(fmt::format("the ledger {} {}; {}", file.string(), what, kRestoreAdvice), code);
}

uint32_t big_endian(const unsigned char* bytes) {
  return static_cast<uint32_t>(bytes[0]) << 24 | static_cast<uint32_t>(bytes[1]) << 16 |
         static_cast<uint32_t>(bytes[2]) << 8 | static_cast<uint32_t>(bytes[3]);
}

int64_t page_size_of(const unsigned char* header) {
  const int64_t stored = static_cast<int64_t>(header[16]) << 8 | header[17];
  return stored == 1 ? 65536 : stored;
}

bool is_page_size(int64_t bytes) {
  return bytes >= 512 && bytes <= 65536 && std::has_single_bit(static_cast<uint64_t>(bytes));
}

// The running checksum of https://www.sqlite.org/fileformat2.html#walcksm.
struct Checksum {
  bool big_endian_words = false;
  uint32_t first = 0;
  uint32_t second = 0;

  void add(const unsigned char* bytes, size_t size) {
    for (size_t at = 0; at < size; at += 8) {
      first += word(bytes + at) + second;
      second += word(bytes + at + 4) + first;
    }
  }
  // The checksum from which add() of these bytes led to this one.
  void take_back(const unsigned char* bytes, size_t size) {
    for (size_t at = size; at > 0; at -= 8) {
      second -= word(bytes + at - 4) + first;
      first -= word(bytes + at - 8) + second;
    }
  }
  bool is(const unsigned char* stored) const {
    return big_endian(stored) == first && big_endian(stored + 4) == second;
  }

 private:
  uint32_t word(const unsigned char* bytes) const {
    const uint32_t big = big_endian(bytes);
    return big_endian_words ? big : __builtin_bswap32(big);
  }
};

class WalReader {
 public:
  WalReader(const fs::path& ledger, int64_t page_size)
      : ledger_(ledger),
        wal_(wal_of(ledger)),
        page_size_(page_size),
        stream_(wal_, std::ios::binary),
        frame_(kFrameHeaderBytes + static_cast<size_t>(page_size)) {}

  void check() {
    constexpr size_t kSmallestPage = 512;
    if (file_bytes(wal_) <
        static_cast<int64_t>(kWalHeaderBytes + kFrameHeaderBytes + kSmallestPage)) {
      return;  // no frame was ever written in full
    }
    if (header_is_good()) {
      read_frames();
    } else if (!is_in_ledger()) {
      // Not a new header that failed in the middle, over frames that are in the ledger.
      refuse(wal_,
             "is damaged at its beginning: what was acknowledged last and is not in the ledger yet "
             "cannot be read");
    }
  }
  bool header_is_good() {
    unsigned char header[kWalHeaderBytes];
    read(header, sizeof header);
    const uint32_t magic = big_endian(header);
    sum_.big_endian_words = (magic & 1) != 0;
    sum_.add(header, 24);
    if ((magic & ~1U) != kWalMagic || big_endian(header + 4) != kWalFormat ||
        !sum_.is(header + 24)) {
      return false;
    }
    if (big_endian(header + 8) != static_cast<uint32_t>(page_size_)) {
      refuse(wal_, fmt::format("has pages of {} bytes, {} has pages of {}: it is another ledger's",
                               big_endian(header + 8), ledger_.string(), page_size_));
    }
    std::memcpy(salt_, header + 16, sizeof salt_);
    return true;
  }

 private:
  // True when the ledger has all pages as the groups leave them that the frames tell of, when
  // nothing is known but that the first of them is good.
  bool is_in_ledger() {
    std::map<uint32_t, std::streamoff> latest, of_group;  // by page: where its content lies
    uint32_t pages = 0;
    stream_.seekg(kWalHeaderBytes);
    for (std::streamoff at = kWalHeaderBytes; read(frame_.data(), frame_.size());
         at += std::ssize(frame_)) {
      const unsigned char* head = frame_.data();
      const bool is_first = at == kWalHeaderBytes;
      if (is_first) std::memcpy(salt_, head + 8, sizeof salt_);
      Checksum next = sum_;
      next.add(head, 8);
      next.add(head + kFrameHeaderBytes, frame_.size() - kFrameHeaderBytes);
      if (std::memcmp(head + 8, salt_, sizeof salt_) != 0 || !(is_first || next.is(head + 16))) {
        break;
      }
      sum_.first = big_endian(head + 16);
      sum_.second = big_endian(head + 20);
      of_group[big_endian(head)] = at + static_cast<std::streamoff>(kFrameHeaderBytes);
      if (big_endian(head + 4) == 0) continue;
      pages = big_endian(head + 4);
      for (const auto& [page, content] : of_group) latest[page] = content;
      of_group.clear();
    }
    stream_.clear();
    std::ifstream ledger(ledger_, std::ios::binary);
    std::vector<char> here(static_cast<size_t>(page_size_)), there(here.size());
    for (const auto& [page, content] : latest) {
      if (page > pages) continue;
      stream_.seekg(content).read(here.data(), page_size_);
      ledger.seekg((int64_t{page} - 1) * page_size_).read(there.data(), page_size_);
      if (!stream_ || !ledger || here != there) return false;
    }
    return pages > 0;
  }

  // The frames from the beginning to the first one that does not fit are what SQLite will take.
  // Behind that a crash or a failed write leaves frames of groups that were never done. A frame
  // that follows a group's last one, as its checksum shows, was begun when that group was on disk:
  // then what is missing before it had been acknowledged. Not so where the last one only looks like
  // it: a later write that failed in the middle of a frame's header leaves its own first bytes
  // before the checksum of a frame that was in the middle of another group.
  void read_frames() {
    int64_t torn_at = 0;
    bool after_group = false;  // the frame before is the last of its group
    for (int64_t frame = 1; read(frame_.data(), frame_.size()); ++frame) {
      const unsigned char* head = frame_.data();
      const bool of_now = std::memcmp(head + 8, salt_, sizeof salt_) == 0;  // not of an older WAL
      Checksum next = sum_;
      next.add(head, 8);
      next.add(head + kFrameHeaderBytes, frame_.size() - kFrameHeaderBytes);
      const bool follows = of_now && next.is(head + 16);
      if (torn_at > 0 && follows && after_group) {
        refuse(wal_, fmt::format("is damaged at frame {}: frame {} behind it was begun only when "
                                 "that one was on disk",
                                 torn_at, frame));
      }
      if (!follows && torn_at == 0) torn_at = frame;
      after_group = of_now && big_endian(head + 4) != 0 && (follows || !was_within_group());
      sum_.first = big_endian(head + 16);
      sum_.second = big_endian(head + 20);
    }
  }

  // True when the checksum at hand is that of this frame with another header, of one that is not
  // the last of its group: what the header was follows from the checksum before (sum_), the one of
  // the frame and its page.
  bool was_within_group() const {
    const unsigned char* head = frame_.data();
    Checksum after_header{sum_.big_endian_words, big_endian(head + 16), big_endian(head + 20)};
    after_header.take_back(head + kFrameHeaderBytes, frame_.size() - kFrameHeaderBytes);
    // As add() has it: the second word is the size of the ledger, 0 within a group.
    return after_header.second - sum_.second - after_header.first == 0;
  }

  bool read(unsigned char* to, size_t size) {
    stream_.read(reinterpret_cast<char*>(to), static_cast<std::streamsize>(size));
    if (stream_.bad()) refuse(wal_, "cannot be read", SQLITE_IOERR);
    return static_cast<size_t>(stream_.gcount()) == size;
  }

  const fs::path& ledger_;
  fs::path wal_;
  int64_t page_size_;
  std::ifstream stream_;
  std::vector<unsigned char> frame_;
  Checksum sum_;
  unsigned char salt_[8] = {};
};

}  // namespace

fs::path wal_of(const fs::path& ledger) {
  fs::path wal = ledger;
  wal += "-wal";
  return wal;
}

int64_t file_bytes(const fs::path& file) {
  std::error_code error;
  const auto size = fs::file_size(file, error);
  return error ? 0 : static_cast<int64_t>(size);
}

int64_t bytes_in_header(const FileDescriptor& ledger) {
  unsigned char header[kHeaderBytes] = {};
  if (::pread(ledger.get(), header, sizeof header, 0) != static_cast<ssize_t>(sizeof header) ||
      std::memcmp(header, kMagic, sizeof kMagic) != 0) {
    return 0;
  }
  return page_size_of(header) * big_endian(header + 28);
}

bool drop_wal_that_is_over(const fs::path& ledger) {
  if (file_bytes(wal_of(ledger)) < static_cast<int64_t>(kWalHeaderBytes)) return false;
  unsigned char header[kHeaderBytes] = {};
  std::ifstream(ledger, std::ios::binary).read(reinterpret_cast<char*>(header), sizeof header);
  if (WalReader(ledger, page_size_of(header)).header_is_good()) return false;
  const FileDescriptor wal = FileDescriptor::open(wal_of(ledger), O_WRONLY);
  if (::ftruncate(wal.get(), 0) != 0 || ::fsync(wal.get()) != 0) {
    throw SystemError("empty", wal_of(ledger).string(), errno);
  }
  return true;
}

LedgerFileState check_ledger_files(const fs::path& ledger, LedgerWriter writer) {
  std::error_code error;
  const int64_t wal_bytes = file_bytes(wal_of(ledger));
  if (!fs::exists(ledger, error)) {
    if (wal_bytes > 0) {
      refuse(ledger, fmt::format("is not there, but {} is, with {} bytes: they belong together, "
                                 "put the ledger back beside it or move it away",
                                 wal_of(ledger).string(), wal_bytes));
    }
    return LedgerFileState::kAbsent;
  }
  if (!fs::is_regular_file(ledger, error)) {
    throw LedgerError(
        fmt::format("the ledger {} is {}; the name of a file is accepted", ledger.string(),
                    fs::is_directory(ledger, error) ? "a folder" : "not a file"),
        SQLITE_CANTOPEN);
  }
  const int64_t size = file_bytes(ledger);
  if (size == 0) {
    refuse(ledger, "is empty, which no ledger ever is (for a new one, remove the empty file)");
  }
  if (writer == LedgerWriter::kPossible) return LedgerFileState::kWhole;
  unsigned char header[kHeaderBytes] = {};
  std::ifstream stream(ledger, std::ios::binary);
  stream.read(reinterpret_cast<char*>(header), sizeof header);
  if (!stream.is_open() || stream.bad()) refuse(ledger, "cannot be read", SQLITE_CANTOPEN);
  if (std::memcmp(header, kMagic, sizeof kMagic) != 0) {
    refuse(ledger, "is not a database: it does not begin as SQLite files do", SQLITE_NOTADB);
  }
  const int64_t page_size = page_size_of(header);
  if (!is_page_size(page_size)) {
    refuse(ledger, fmt::format("says that its pages have {} bytes; 512 to 65536 and a power of two "
                               "is possible",
                               page_size));
  }
  if (wal_bytes > 0) WalReader(ledger, page_size).check();
  const int64_t whole = page_size * big_endian(header + 28);
  const bool size_is_known = std::memcmp(header + 24, header + 92, 4) == 0;
  if (size >= whole || !size_is_known) return LedgerFileState::kWhole;
  if (wal_bytes == 0) {
    refuse(ledger,
           fmt::format("is cut off: it has {} bytes of the {} that its header says", size, whole));
  }
  return LedgerFileState::kUnclear;
}

}  // namespace gnomon
