#include "trainer/refused_log.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <boost/json.hpp>
#include <cerrno>
#include <chrono>

#include "base/errors.h"
#include "base/files.h"
#include "base/wall_clock.h"

namespace gnomon {

RefusedLog::RefusedLog(std::filesystem::path file, int64_t bytes_max)
    : file_(std::move(file)), bytes_max_(bytes_max) {}

void RefusedLog::append(const SpoolRecord& record, int status, const std::string& why) {
  const double now = now_seconds();
  // The report is JSON already.
  const std::string line =
      fmt::format("{{\"time\":{:.3f},\"target\":{},\"status\":{},\"why\":{},\"report\":{}}}\n", now,
                  boost::json::serialize(boost::json::string(record.target)), status,
                  boost::json::serialize(boost::json::string(why)), record.body);
  const auto size = static_cast<int64_t>(line.size());
  if (size > bytes_max_ / 2) {
    throw Error(fmt::format("{} bytes are too many for {}, which takes {}", size, file_.string(),
                            bytes_max_ / 2));
  }
  std::error_code missing;
  const auto before = static_cast<int64_t>(std::filesystem::file_size(file_, missing));
  if (!missing && before + size > bytes_max_ / 2) {
    std::filesystem::path former = file_;
    former.replace_extension(".1.jsonl");
    std::error_code error;
    std::filesystem::rename(file_, former, error);
    if (error) throw SystemError("rename", file_.string(), error.value());
  }
  const FileDescriptor out = FileDescriptor::open(file_, O_WRONLY | O_APPEND | O_CREAT);
  write_all(out.get(), line, file_);
}

}  // namespace gnomon
