// Faults that are switched on by configuration, to show that they are caught. Off by default; told
// to the controller, which records them as injected. A fault in the numerics or the data is part of
// the step's pure function, so a replay feels it too; a hardware fault (bit flip) strikes the live
// trainer only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gnomon {

enum class FaultKind {
  kFrozenAmax,    // delayed scaling: the amax history of one site's tensor stops updating
  kScaleShift,    // the quantisation scale of one site's tensor is off by 2^log2_factor
  kCorruptBatch,  // the step's tokens are replaced by uniform random ones: BF16 feels it too
  kBitFlip,       // one bit of one master weight flips after the step; live trainer only
};

struct Fault {
  FaultKind kind = FaultKind::kScaleShift;
  std::string site = {};         // frozen_amax, scale_shift: module name; bit_flip: parameter name
  std::string tensor = "input";  // "input", "weight", "gradient"
  int64_t start_step = 0;        // first step it acts in
  int64_t end_step = 0;          // first step it no longer acts in; 0 = never ends
  int log2_factor = 0;           // scale_shift
  int64_t element = 0;           // bit_flip: index into the parameter
  int bit = 30;  // bit_flip: 0 (lowest mantissa bit) .. 31 (sign) of the FP32 master

  bool active(int64_t step) const {
    return step >= start_step && (end_step == 0 || step < end_step);
  }
  std::string describe() const;  // a sentence
};

std::string fault_kind_name(FaultKind kind);              // "frozen_amax", ...
FaultKind fault_kind_from_name(const std::string& name);  // throws Error naming the accepted ones

}  // namespace gnomon
