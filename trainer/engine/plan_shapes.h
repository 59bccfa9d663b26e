// Checks whether a model's GEMMs have the sizes that a plan's recipes need.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/backend.h"
#include "protocol/precision_plan.h"
#include "trainer/engine/model_config.h"

namespace gnomon {

// Throws ConfigError (file, line of the rule that chose the recipe) when the engine does not have a
// site's recipe, or when a site with a recipe of
// tiles (rowwise, rowwise_gw_hp, block, mx) has a GEMM that sums over a number of terms, or has a
// number of columns, that cuBLASLt does not take: multiples of 16, and 32 terms for mx. `tokens` is
// what one pass holds, sequences × tokens. A plan with allow_ragged_tiles is taken as it is: the
// emulation lets the last tile be shorter.
void check_plan_shapes(const PrecisionPlan& plan, const ModelConfig& model, int64_t tokens,
                       const std::string& file = "plan");

// Throws ConfigError (section "model", "batch" or "plan") for a model that a device cannot compute
// with, and for a plan whose FP8 GEMMs it cannot (BackendBase::width_multiple(), limits()).
// `tokens` of one sequence: an evaluation, or a part of one, may hold any number of sequences.
void check_device_shapes(const ModelConfig& model, const BackendBase& backend);
void check_device_shapes(const PrecisionPlan& plan, const ModelConfig& model, int64_t tokens,
                         int64_t multiple, const BackendBase::Limits& limits);

}  // namespace gnomon
