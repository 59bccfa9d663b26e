#include "controller/daemon/retention.h"

#include <spdlog/spdlog.h>

#include "storage/ledger_retention.h"

namespace gnomon {
namespace {

constexpr double kDay = 86'400;
constexpr double kPauseSeconds = 60;  // after a round over all tables, or a failure
constexpr int64_t kRowsAtOnce = 1000;

}  // namespace

double RetentionSettings::days_of(const std::string& table) const {
  double days = 0;
  describe([&](std::string_view key, auto member, const Setting&) {
    if (key == table + "_days") days = this->*member;
  });
  return days;
}

Retention::Retention(Metrics& metrics, RetentionSettings settings, std::function<double()> now,
                     std::function<double()> steady_now)
    : metrics_(metrics),
      now_(std::move(now)),
      steady_now_(std::move(steady_now)),
      settings_(settings) {}

void Retention::configure(const RetentionSettings& settings) {
  const std::lock_guard lock(mutex_);
  settings_ = settings;
  next_ = 0;
}

void Retention::post(Ledger& ledger) {
  under_way_ = true;
  const bool accepted =
      ledger.post([this](LedgerTransaction& transaction) { trim(transaction); },
                  [this](std::exception_ptr error) {
                    if (error) {
                      next_ = steady_now_() + kPauseSeconds;
                      try {
                        std::rethrow_exception(error);
                      } catch (const std::exception& failure) {
                        spdlog::warn("old rows were not deleted: {}", failure.what());
                      }
                    }
                    under_way_ = false;
                  });
  if (!accepted) under_way_ = false;
}

// One table a time; a table that has no more old rows gives the next one its turn.
void Retention::trim(LedgerTransaction& transaction) {
  const auto tables = ledger::retained_tables();
  const ledger::RetainedTable& table = tables[table_];
  double days = 0;
  {
    const std::lock_guard lock(mutex_);
    days = settings_.days_of(table.name);
  }
  const int64_t deleted =
      days == 0 ? 0 : table.trim(transaction.connection(), now_() - days * kDay, kRowsAtOnce);
  transaction.on_commit([this, name = table.name, deleted, count = tables.size()] {
    if (deleted > 0) {
      metrics_.update(
          [&](DaemonNumbers& n) { n.rows_deleted[name] += static_cast<double>(deleted); });
      return;
    }
    table_ = (table_ + 1) % count;
    if (table_ == 0) next_ = steady_now_() + kPauseSeconds;
  });
}

}  // namespace gnomon
