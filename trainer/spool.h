// The trainer's journal of what the controller does not know yet: a bounded append-only log on
// disk. A record is in the page cache when append returns, so that it survives kill -9 of the
// trainer; sync() makes it survive the machine. Records leave in order, when they were
// acknowledged.
//
// Files in the spool's directory: segments "spool-<number of the first record>.log" of lines
// "<hash> <number> <target> <json>", and "acknowledged" with the number up to which everything was
// delivered.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace gnomon {

// What is to be posted to /v1/runs/{run}/`target`.
struct SpoolRecord {
  int64_t number = 0;  // 1, 2, ... over the spool's whole life
  std::string
      target;  // "attempts", "steps", "checkpoints", "directives/3/ack", "notices", "finished"
  std::string body;  // JSON
};

// Thread-safe.
class Spool {
 public:
  enum class Outcome {
    kWritten,
    kFull,      // bytes_max is reached; nothing was written
    kDiskFull,  // the file system has no room; nothing was written
  };

  // Opens or creates the spool. A torn last line is dropped; damaged lines elsewhere are left out;
  // both are in opening_notes(). Throws SystemError.
  Spool(std::filesystem::path directory, int64_t bytes_max);
  ~Spool();

  // `target` has no space, `body` no newline. kFull also when fewer than `bytes_kept_free` would be
  // left for others. Throws SystemError for errors other than a full disk.
  Outcome append(std::string_view target, std::string_view body, int64_t bytes_kept_free = 0);

  // The oldest unacknowledged records, in order: at least one if there is any, then as many as fit
  // both bounds. One that the disk has damaged since comes with an empty target, and a body that
  // says so.
  std::vector<SpoolRecord> oldest(size_t records_max, size_t bytes_max) const;
  // Bodies of all unacknowledged records with this target.
  std::vector<std::string> pending(std::string_view target) const;
  // Targets of all unacknowledged records, in order.
  std::vector<std::string> pending_targets() const;
  // Everything up to `number` was delivered: it is forgotten and its disk space given back by and
  // by.
  void acknowledge(int64_t number);

  // fsync of what was appended since the last sync. Does not hold up append().
  void sync();

  bool empty() const;
  size_t records() const;
  int64_t bytes() const;  // on disk
  int64_t bytes_max() const { return bytes_max_; }
  const std::filesystem::path& directory() const { return directory_; }
  // Waits until there is a record, or wake() is called, or `timeout` has passed.
  void wait_for_records(std::chrono::milliseconds timeout);
  // Waits until there is none. Returns whether that is so.
  bool wait_until_empty(std::chrono::milliseconds timeout);
  void wake();
  const std::vector<std::string>& opening_notes() const { return opening_notes_; }

 private:
  struct Segment {
    std::filesystem::path path;
    FileDescriptor fd;
    int64_t bytes = 0;
    int64_t last_number = 0;
    bool dirty = false;
  };
  struct Entry {
    int64_t number = 0;
    std::shared_ptr<Segment> segment;
    int64_t offset = 0;
    int64_t length = 0;  // without the newline
    std::string target;
  };

  void read_acknowledged();
  void open_segment(const std::filesystem::path& path, bool last);
  bool start_segment();
  bool write_line(const std::string& line);
  void drop_acknowledged_segments();
  SpoolRecord read(const Entry& entry) const;

  std::filesystem::path directory_;
  int64_t bytes_max_;
  int64_t segment_bytes_max_;
  FileDescriptor acknowledged_file_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Segment>> segments_;  // oldest first; the last one is written to
  std::deque<Entry> entries_;
  int64_t acknowledged_ = 0;
  int64_t next_number_ = 1;
  int64_t bytes_ = 0;
  bool woken_ = false;
  std::vector<std::string> opening_notes_;
};

}  // namespace gnomon
