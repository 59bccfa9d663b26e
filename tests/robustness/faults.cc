#include "tests/robustness/faults.h"

#include <fmt/format.h>

#include <array>

namespace gnomon::robustness {
namespace {

struct Moment {
  const char* point;
  int64_t at_most;  // how often such a moment comes in a history, about
};
constexpr std::array<Moment, 6> kMoments = {{{"before_commit", 120},
                                             {"after_commit", 120},
                                             {"before_answer", 150},
                                             {"state_saved", 60},
                                             {"wal_checkpoint", 2},
                                             {"notify_delivered", 60}}};

std::string at_a_moment(const char* action, Draw& draw) {
  const Moment& moment = kMoments[static_cast<size_t>(draw.between(0, kMoments.size() - 1))];
  return fmt::format("{}={}@{}", moment.point, action, draw.between(1, moment.at_most));
}

}  // namespace

const std::vector<FaultName>& fault_names() {
  static const std::vector<FaultName> names = {
      {Fault::kKill, "kill"},         {Fault::kFailpoint, "failpoint"},
      {Fault::kStop, "stop"},         {Fault::kError, "error"},
      {Fault::kDisk, "disk"},         {Fault::kClock, "clock"},
      {Fault::kNetwork, "network"},   {Fault::kTerminate, "terminate"},
      {Fault::kBackup, "backup"},     {Fault::kMigration, "migration"},
      {Fault::kLockstep, "lockstep"}, {Fault::kFull, "full"},
      {Fault::kLink, "link"},         {Fault::kPower, "power"},
  };
  return names;
}

std::string_view name_of(Fault fault) {
  for (const FaultName& name : fault_names()) {
    if (name.fault == fault) return name.name;
  }
  return "none";
}

std::string failpoints_of(Fault fault, Draw& draw) {
  switch (fault) {
    case Fault::kFailpoint:
    case Fault::kLockstep:
      return at_a_moment("kill", draw);
    case Fault::kStop:
      return draw.chance(0.5) ? at_a_moment("stop", draw) : "";
    case Fault::kError:
      return fmt::format("{}=error@{}", draw.chance(0.5) ? "before_commit" : "state_saved",
                         draw.between(1, 60));
    case Fault::kBackup:
      return draw.chance(0.5) ? fmt::format("backup_copy=kill@{}", draw.between(1, 3))
                              : fmt::format("backup_rename=kill@{}", draw.between(1, 3));
    case Fault::kMigration:
      return "migration=kill@1";
    default:
      return {};
  }
}

}  // namespace gnomon::robustness
