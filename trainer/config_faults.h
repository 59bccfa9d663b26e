// [[fault]] of the trainer's configuration.
#pragma once

#include "protocol/toml_reader.h"
#include "trainer/engine/engine.h"

namespace gnomon {

// One fault for the run that `engine` and its first plan describe, whose model is sound. Throws
// ConfigError for a key that the kind has no use for, for what check_fault() refuses, with the
// key's line, and for a fault of something in FP8 that the plan does not have in FP8.
Fault read_fault(TomlTable& table, const EngineConfig& engine, const PrecisionPlan& plan);

}  // namespace gnomon
