// This machine, as operators know it.
#pragma once

#include <string>

namespace gnomon {

std::string host_name();

// The processor's model name, "unknown" where the system does not say.
std::string processor_name();

}  // namespace gnomon
