// This machine, as operators know it.
#pragma once

#include <string>

namespace gnomon {

std::string host_name();

// The processor's model name, "unknown" where the system does not say.
std::string processor_name();

// Lets this process have many files open, as far as its hard limit goes: each shard of a dataset is
// one, and so is each other rank.
void allow_many_files();

}  // namespace gnomon
