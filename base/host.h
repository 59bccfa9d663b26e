// This machine's name, as operators know it.
#pragma once

#include <string>

namespace gnomon {

std::string host_name();

}  // namespace gnomon
