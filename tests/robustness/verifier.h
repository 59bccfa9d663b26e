// A verifier of a history: takes leases, sends heartbeats and results, and misbehaves as real ones
// do: dies with a lease, answers after it ran out, answers twice, gives up, or has another's token.
#pragma once

#include <deque>

#include "tests/robustness/draw.h"
#include "tests/robustness/endpoint.h"

namespace gnomon::robustness {

class Verifier {
 public:
  enum class Manners {
    kReliable,  // every lease is answered once
    kAsItIs,
  };
  Verifier(Scene& scene, uint64_t seed, int number, Manners manners);

  // Asks for work once and does it; false when there was none.
  bool turn();
  // The last question for work was not answered: a lease may be out that nobody knows of.
  bool unsure() const { return unsure_; }
  // Until the trainers are through.
  void run();

 private:
  void note_grant(const Lease& lease);
  void complete(const Lease& lease);
  void complete_with_wrong_token(const Lease& lease);
  void fail(const Lease& lease);
  void beat(const Lease& lease);
  ReplayResult result_for(const Lease& lease) const;
  std::string path(const Lease& lease, const std::string& what) const;
  int number_of(const Lease& lease) const;
  void violation(const std::string& what);

  Scene& scene_;
  Draw draw_;
  Manners manners_;
  std::string name_;
  Endpoint endpoint_;
  bool unsure_ = false;
  std::deque<Lease> forgotten_;  // leases it died with, to be answered much later
};

}  // namespace gnomon::robustness
