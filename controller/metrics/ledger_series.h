// Metrics of the ledger's files: sizes, backups, deleted rows, integrity. Thread-safe.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <map>
#include <string>

namespace gnomon {

class LedgerSeries {
 public:
  explicit LedgerSeries(prometheus::Registry& registry);

  void set_sizes(int64_t file_bytes, int64_t wal_bytes);
  void backup_ended(bool successful);
  void backup_made_at(double time);  // seconds since the epoch
  void rows_deleted(const std::string& table, int64_t count);
  void set_integrity(const std::string& state);  // pending, ok, failed, lost

 private:
  prometheus::Gauge& size_bytes_;
  prometheus::Gauge& wal_bytes_;
  prometheus::Family<prometheus::Counter>& backups_;
  prometheus::Gauge& backup_success_time_;
  prometheus::Family<prometheus::Counter>& rows_deleted_;
  prometheus::Family<prometheus::Gauge>& integrity_;
};

}  // namespace gnomon
