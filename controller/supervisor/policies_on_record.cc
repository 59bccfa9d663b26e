#include "controller/supervisor/policies_on_record.h"

#include <fmt/format.h>

#include <charconv>

#include "base/errors.h"
#include "storage/ledger_audit.h"

namespace gnomon {
namespace {

constexpr std::string_view kFront = "in force up to event ";

}  // namespace

void record_replaced_policy(Connection& connection, double now, int64_t run, int64_t seq,
                            const std::string& toml) {
  ledger::insert_audit(connection, now, run, "policy_replaced",
                       fmt::format("{}{}\n{}", kFront, seq, toml));
}

PoliciesOnRecord::PoliciesOnRecord(Connection& connection, int64_t run,
                                   const decide::Policy& newest)
    : newest_(newest) {
  Query rows = connection.query(
      "SELECT what, time, detail FROM audit WHERE run = ? AND what IN ('policy_changed', "
      "'policy_replaced') ORDER BY id",
      run);
  bool recorded = false;  // the row before says what was replaced
  while (rows.next()) {
    if (rows.text(0) == "policy_changed") {
      if (!recorded) unknown_before_ = rows.real(1);
      recorded = false;
      continue;
    }
    const std::string detail = rows.text(2);
    const size_t end = detail.find('\n');
    int64_t seq = 0;
    if (!detail.starts_with(kFront) || end == std::string::npos ||
        std::from_chars(detail.data() + kFront.size(), detail.data() + end, seq).ptr !=
            detail.data() + end) {
      continue;
    }
    replaced_.push_back({seq, detail.substr(end + 1)});
    recorded = true;
  }
}

const decide::Policy& PoliciesOnRecord::at(int64_t seq, double time) {
  if (time < unknown_before_) {
    throw Error(fmt::format("the policy under which event {} was decided is not on record", seq));
  }
  for (Replaced& one : replaced_) {
    if (seq > one.last_seq) continue;
    if (!one.parsed) {
      one.parsed = decide::Policy::parse(one.toml, fmt::format("the policy up to event {}", seq));
    }
    return *one.parsed;
  }
  return newest_;
}

}  // namespace gnomon
