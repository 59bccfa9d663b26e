#include "trainer/spool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>

#include "base/errors.h"
#include "base/hash.h"

namespace gnomon {
namespace {

constexpr int64_t kSegmentBytesMax = 8 << 20;
constexpr int64_t kSegmentBytesMin = 4 << 10;
constexpr size_t kHashDigits = 16;

std::string sealed(const std::string& text) {
  return hex64(hash64(text.data(), text.size())) + " " + text;
}

// The text behind the hash when the hash fits, nothing otherwise.
std::optional<std::string_view> unsealed(std::string_view line) {
  if (line.size() <= kHashDigits || line[kHashDigits] != ' ') return std::nullopt;
  const std::string_view text = line.substr(kHashDigits + 1);
  if (line.substr(0, kHashDigits) != hex64(hash64(text.data(), text.size()))) return std::nullopt;
  return text;
}

int64_t leading_number(std::string_view text) {
  int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// `text` is "<number> <target> <json>".
std::string_view target_of(std::string_view text) {
  const size_t start = text.find(' ') + 1;
  return text.substr(start, text.find(' ', start) - start);
}

std::string read_range(int fd, int64_t offset, int64_t length, const std::filesystem::path& path) {
  std::string text(static_cast<size_t>(length), '\0');
  int64_t done = 0;
  while (done < length) {
    const ssize_t count =
        ::pread(fd, text.data() + done, static_cast<size_t>(length - done), offset + done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw SystemError("read", path.string(), count < 0 ? errno : EIO);
    done += count;
  }
  return text;
}

}  // namespace

Spool::Spool(std::filesystem::path directory, int64_t bytes_max)
    : directory_(std::move(directory)),
      bytes_max_(bytes_max),
      segment_bytes_max_(std::clamp(bytes_max / 8, kSegmentBytesMin, kSegmentBytesMax)) {
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  if (error) throw SystemError("create", directory_.string(), error.value());
  read_acknowledged();
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    if (entry.path().extension() == ".log") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());  // the numbers have leading zeros
  for (const auto& path : paths) open_segment(path, &path == &paths.back());
  next_number_ = std::max(next_number_, acknowledged_ + 1);
  drop_acknowledged_segments();
}

Spool::~Spool() = default;

void Spool::read_acknowledged() {
  const std::filesystem::path path = directory_ / "acknowledged";
  acknowledged_file_ = FileDescriptor::open(path, O_RDWR | O_CREAT);
  std::string line = read_file(path);
  if (!line.empty() && line.back() == '\n') line.pop_back();
  if (const auto text = unsealed(line)) {
    acknowledged_ = leading_number(*text);
  } else if (!line.empty()) {
    opening_notes_.push_back(
        fmt::format("{} is damaged: everything still spooled is sent again", path.string()));
  }
}

void Spool::open_segment(const std::filesystem::path& path, bool last) {
  auto segment = std::make_shared<Segment>();
  segment->path = path;
  segment->fd = FileDescriptor::open(path, O_RDWR | O_APPEND);
  const std::string content = read_file(path);
  size_t start = 0;
  while (start < content.size()) {
    const size_t end = content.find('\n', start);
    const bool torn = end == std::string::npos;
    const std::string_view line =
        std::string_view(content).substr(start, torn ? std::string::npos : end - start);
    const auto text = torn ? std::nullopt : unsealed(line);
    const bool at_end = torn || end + 1 == content.size();
    if (!text && last && at_end) {
      opening_notes_.push_back(fmt::format("{}: a torn last line was dropped", path.string()));
      if (::ftruncate(segment->fd.get(), static_cast<off_t>(start)) != 0) {
        throw SystemError("truncate", path.string(), errno);
      }
      break;
    }
    if (!text) {
      opening_notes_.push_back(
          fmt::format("{}: a damaged line at byte {} was left out", path.string(), start));
    } else {
      const int64_t number = leading_number(*text);
      segment->last_number = std::max(segment->last_number, number);
      next_number_ = std::max(next_number_, number + 1);
      if (number > acknowledged_) {
        entries_.push_back({number, segment, static_cast<int64_t>(start),
                            static_cast<int64_t>(line.size()), std::string(target_of(*text))});
      }
    }
    if (torn) {
      start = content.size();
      break;
    }
    start = end + 1;
  }
  segment->bytes = static_cast<int64_t>(start);
  bytes_ += segment->bytes;
  segments_.push_back(std::move(segment));
}

// False when the disk is full.
bool Spool::start_segment() {
  auto segment = std::make_shared<Segment>();
  segment->path = directory_ / fmt::format("spool-{:020}.log", next_number_);
  try {
    segment->fd = FileDescriptor::open(segment->path, O_RDWR | O_APPEND | O_CREAT);
  } catch (const SystemError& error) {
    if (error.disk_full()) return false;
    throw;
  }
  segments_.push_back(std::move(segment));
  return true;
}

// False when the disk is full; then the file is as it was.
bool Spool::write_line(const std::string& line) {
  Segment& segment = *segments_.back();
  try {
    write_all(segment.fd.get(), line, segment.path);
  } catch (const SystemError& error) {
    if (::ftruncate(segment.fd.get(), segment.bytes) != 0)
      throw SystemError("truncate", segment.path.string(), errno);
    if (error.disk_full()) return false;
    throw;
  }
  return true;
}

Spool::Outcome Spool::append(std::string_view target, std::string_view body,
                             int64_t bytes_kept_free) {
  GNOMON_ASSERT(target.find(' ') == std::string_view::npos &&
                body.find('\n') == std::string_view::npos);
  {
    std::lock_guard lock(mutex_);
    const std::string line = sealed(fmt::format("{} {} {}", next_number_, target, body)) + "\n";
    const auto size = static_cast<int64_t>(line.size());
    if (bytes_ + size + bytes_kept_free > bytes_max_) return Outcome::kFull;
    const bool rotate = segments_.empty() || segments_.back()->bytes + size > segment_bytes_max_;
    if (rotate && !start_segment()) return Outcome::kDiskFull;
    if (!write_line(line)) return Outcome::kDiskFull;
    const std::shared_ptr<Segment>& segment = segments_.back();
    entries_.push_back({next_number_, segment, segment->bytes, size - 1, std::string(target)});
    segment->bytes += size;
    segment->last_number = next_number_;
    segment->dirty = true;
    bytes_ += size;
    ++next_number_;
    if (rotate) drop_acknowledged_segments();
  }
  changed_.notify_all();
  return Outcome::kWritten;
}

SpoolRecord Spool::read(const Entry& entry) const {
  const std::string line =
      read_range(entry.segment->fd.get(), entry.offset, entry.length, entry.segment->path);
  const auto text = unsealed(line);
  if (!text) {
    return {entry.number, "",
            fmt::format("{}: the record at byte {} is damaged", entry.segment->path.string(),
                        entry.offset)};
  }
  const size_t body = text->find(' ', text->find(' ') + 1) + 1;
  return {entry.number, entry.target, std::string(text->substr(body))};
}

std::vector<SpoolRecord> Spool::oldest(size_t records_max, size_t bytes_max) const {
  std::lock_guard lock(mutex_);
  std::vector<SpoolRecord> records;
  size_t bytes = 0;
  for (const Entry& entry : entries_) {
    bytes += static_cast<size_t>(entry.length);
    if (!records.empty() && (records.size() >= records_max || bytes > bytes_max)) break;
    records.push_back(read(entry));
  }
  return records;
}

std::vector<std::string> Spool::pending(std::string_view target) const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> bodies;
  for (const Entry& entry : entries_) {
    if (entry.target != target) continue;
    SpoolRecord record = read(entry);
    if (!record.target.empty()) bodies.push_back(std::move(record.body));
  }
  return bodies;
}

std::vector<std::string> Spool::pending_targets() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> targets;
  for (const Entry& entry : entries_) targets.push_back(entry.target);
  return targets;
}

void Spool::acknowledge(int64_t number) {
  {
    std::lock_guard lock(mutex_);
    if (number <= acknowledged_) return;
    acknowledged_ = number;
    const std::string line = sealed(fmt::format("{:020}", number)) + "\n";
    const ssize_t written = ::pwrite(acknowledged_file_.get(), line.data(), line.size(), 0);
    // Should this fail, the records are sent once more after a restart, which is harmless.
    static_cast<void>(written);
    while (!entries_.empty() && entries_.front().number <= number) entries_.pop_front();
    drop_acknowledged_segments();
  }
  changed_.notify_all();
}

// Segments before the one written to, of which every record was delivered.
void Spool::drop_acknowledged_segments() {
  while (segments_.size() > 1 && segments_.front()->last_number <= acknowledged_) {
    bytes_ -= segments_.front()->bytes;
    ::unlink(segments_.front()->path.c_str());
    segments_.pop_front();
  }
  const bool half_full = !segments_.empty() && segments_.back()->bytes > segment_bytes_max_ / 2;
  if (half_full && entries_.empty() && start_segment()) {
    bytes_ -= segments_.front()->bytes;
    ::unlink(segments_.front()->path.c_str());
    segments_.pop_front();
  }
}

void Spool::sync() {
  std::vector<std::shared_ptr<Segment>> dirty;
  {
    std::lock_guard lock(mutex_);
    for (const auto& segment : segments_) {
      if (segment->dirty) dirty.push_back(segment);
      segment->dirty = false;
    }
  }
  if (dirty.empty()) return;
  for (const auto& segment : dirty) {
    if (::fdatasync(segment->fd.get()) != 0)
      throw SystemError("fsync", segment->path.string(), errno);
  }
  sync_path(directory_);
}

bool Spool::empty() const {
  std::lock_guard lock(mutex_);
  return entries_.empty();
}

size_t Spool::records() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

int64_t Spool::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

void Spool::wait_for_records(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return !entries_.empty() || woken_; });
  woken_ = false;
}

bool Spool::wait_until_empty(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [this] { return entries_.empty(); });
}

void Spool::wake() {
  {
    std::lock_guard lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

}  // namespace gnomon
