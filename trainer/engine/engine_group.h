// An engine among those of the other ranks: what it says to them within a call, and sums over all.
#pragma once

#include <exception>
#include <memory>
#include <span>
#include <string>

#include "kernels/backend.h"
#include "trainer/engine/engine_ranks.h"

namespace gnomon {

class EngineGroup {
 public:
  // `ranks` must outlive it; nullptr: there are no others.
  explicit EngineGroup(EngineRanks* ranks);
  EngineGroup(const EngineGroup&) = delete;
  EngineGroup& operator=(const EngineGroup&) = delete;

  bool many() const { return ranks_.many(); }
  int rank() const { return collectives().rank(); }
  int size() const { return collectives().size(); }
  Collectives& collectives() const { return *ranks_.collectives; }

  void set_number(int64_t number) { number_ = number; }
  // Tells the other ranks to make this call of their engines. On rank 0 of several; nothing
  // elsewhere.
  void send_call(EngineCall call, std::string argument = {}, bool flag = false) const;
  // Ends the job with the exception that is being handled, which this rank alone has: the others
  // are in the same call and wait for this one. Throws it again where there are no others.
  [[noreturn]] void fail_alone(const std::exception& error) const;

  // Sums over ranks, which all call it: modulo 2⁶⁴, and of counts (the largest of peaks).
  uint64_t sum(uint64_t value) const;
  void sum(std::span<CastCounts> casts) const;

 private:
  std::unique_ptr<Collectives> single_;  // where there are no other ranks
  EngineRanks alone_;
  EngineRanks& ranks_;
  int64_t number_ = 0;  // of this engine among those of the ranks
};

}  // namespace gnomon
