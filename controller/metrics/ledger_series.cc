#include "controller/metrics/ledger_series.h"

#include "storage/ledger_retention.h"

namespace gnomon {
namespace {

prometheus::Gauge& plain_gauge(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({});
}

constexpr const char* kIntegrityStates[] = {"pending", "ok", "failed", "lost"};

}  // namespace

LedgerSeries::LedgerSeries(prometheus::Registry& registry)
    : size_bytes_(plain_gauge(registry, "gnomon_ledger_size_bytes", "the ledger's file")),
      wal_bytes_(plain_gauge(registry, "gnomon_ledger_wal_bytes", "its write-ahead log")),
      backups_(prometheus::BuildCounter()
                   .Name("gnomon_ledger_backups_total")
                   .Help("backups that were begun")
                   .Register(registry)),
      backup_success_time_(plain_gauge(registry,
                                       "gnomon_ledger_backup_last_success_timestamp_seconds",
                                       "when the newest good backup was made")),
      rows_deleted_(prometheus::BuildCounter()
                        .Name("gnomon_ledger_rows_deleted_total")
                        .Help("rows that were older than they are kept")
                        .Register(registry)),
      integrity_(prometheus::BuildGauge()
                     .Name("gnomon_ledger_integrity")
                     .Help("1 for the state of the check of all pages; lost: its files are not "
                           "there any more")
                     .Register(registry)) {
  for (const char* outcome : {"completed", "failed"}) backups_.Add({{"outcome", outcome}});
  for (const ledger::RetainedTable& table : ledger::retained_tables()) {
    rows_deleted_.Add({{"table", table.name}});
  }
  set_integrity("pending");
}

void LedgerSeries::set_sizes(int64_t file_bytes, int64_t wal_bytes) {
  size_bytes_.Set(static_cast<double>(file_bytes));
  wal_bytes_.Set(static_cast<double>(wal_bytes));
}

void LedgerSeries::backup_ended(bool successful) {
  backups_.Add({{"outcome", successful ? "completed" : "failed"}}).Increment();
}

void LedgerSeries::backup_made_at(double time) { backup_success_time_.Set(time); }

void LedgerSeries::rows_deleted(const std::string& table, int64_t count) {
  rows_deleted_.Add({{"table", table}}).Increment(static_cast<double>(count));
}

void LedgerSeries::set_integrity(const std::string& state) {
  for (const char* one : kIntegrityStates) {
    integrity_.Add({{"state", one}}).Set(state == one ? 1 : 0);
  }
}

}  // namespace gnomon
