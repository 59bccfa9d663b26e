// [[fault]] of the trainer's configuration.
#pragma once

#include "protocol/toml_reader.h"
#include "trainer/engine/engine.h"

namespace gnomon {

// One fault for the run that `engine` describes, whose model is sound. Throws ConfigError for a key
// that the kind has no use for, and for what check_fault() refuses, with the key's line.
Fault read_fault(TomlTable& table, const EngineConfig& engine);

}  // namespace gnomon
