// The verifiers of a simulated run: who does which replay from when to when, who dies over it and
// who has begun to compute wrongly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "controller/decide/events.h"
#include "lab/simulate/faults.h"
#include "lab/simulate/run_model.h"

namespace gnomon::simulate {

class VerifierPool {
 public:
  // `lease_ttl_seconds`: how long a dead one's work waits until it is leased again.
  VerifierPool(const RunModel& model, double lease_ttl_seconds, uint64_t seed);

  struct Task {
    decide::OrderReplay order;
    decide::OpenWindow window;
    int64_t leases = 0;
  };
  struct Done {
    Task task;
    bool died = false;  // the lease ran out
    std::string verifier;
    bool lies = false;
    double seconds = 0;
  };

  // True when somebody who is free may do it now; `others` is true when somebody else than
  // order.avoid, and not quarantined, could ever do it.
  bool may_start(const decide::OrderReplay& order, const std::vector<std::string>& quarantined,
                 double now) const;
  // Somebody who may begins; `seconds` is the time it takes a verifier of the trainer's speed.
  void start(Task task, const std::vector<std::string>& quarantined, double now, double seconds);
  // The earliest that is finished by then.
  std::optional<Done> pop_done(double now);
  // When somebody will be done, or back, at the earliest; +infinity when everybody is free.
  double next_change(double now) const;
  bool idle() const;

 private:
  struct Verifier {
    std::string name;
    bool lies = false;
    double absent_until = 0;
    std::optional<Done> work;
    double done_at = 0;
  };
  // The free verifier for an order; null when there is none.
  const Verifier* pick(const decide::OrderReplay& order,
                       const std::vector<std::string>& quarantined, double now) const;

  const RunModel& model_;
  double lease_ttl_seconds_;
  Draw draw_;
  std::vector<Verifier> verifiers_;
};

}  // namespace gnomon::simulate
