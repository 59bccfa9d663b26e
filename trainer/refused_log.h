// Reports that the controller would not take, kept for a person: "refused.jsonl" in the spool's
// directory, one JSON object a line with time, target, status, why and the report itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "trainer/spool.h"

namespace gnomon {

class RefusedLog {
 public:
  // The file and the one before it ("refused.1.jsonl") hold `bytes_max` together at most: when half
  // of that is reached, the file takes the place of the one before.
  RefusedLog(std::filesystem::path file, int64_t bytes_max);

  // `status` is the controller's last answer. Throws SystemError, and Error for a report that is
  // larger than the file may be.
  void append(const SpoolRecord& record, int status, const std::string& why);

  const std::filesystem::path& file() const { return file_; }

 private:
  std::filesystem::path file_;
  int64_t bytes_max_;
};

}  // namespace gnomon
