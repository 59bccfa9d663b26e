// Rows of what GPUs said of themselves, as trainers report it with their steps. As in
// ledger_runs.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "protocol/records.h"
#include "storage/ledger_connection.h"

namespace gnomon::ledger {

// Of so many seconds only the newest sample is kept, so that hours are covered.
inline constexpr int64_t kHealthEverySeconds = 10;
// Beyond it the oldest sample of the run goes: some 55 hours of them. A row takes about 600 bytes:
// at most some 12 MB for a run.
inline constexpr int64_t kHealthSamplesMax = 20'000;

struct HealthRow {
  int64_t sample = 0;  // 1, 2, ...
  int64_t attempt = 1;
  int64_t step = 0;       // whose report carried it
  std::string host;       // where rank 0 ran
  std::string device;     // PCI bus id
  double sampled_at = 0;  // by the trainer's clock
  std::optional<int64_t> ecc_uncorrected = {};
  // How many of those people know of: it stood so when the device was first seen, or a notice said
  // so.
  std::optional<int64_t> ecc_told = {};
  std::string body;  // DeviceHealth as JSON
};

std::optional<HealthRow> newest_health(Connection& connection, int64_t run);
// Gives it the next number, or that of the sample of the same ten seconds, which it replaces.
void insert_health(Connection& connection, int64_t run, const HealthRow& row, double now,
                   int64_t samples_max = kHealthSamplesMax);

}  // namespace gnomon::ledger
