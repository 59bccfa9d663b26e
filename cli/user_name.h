#pragma once

#include <string>

namespace gnomon::cli {

// Who asks, as a record is to name him: $USER, or what the password file says where a shell has not
// set it; empty when neither is known.
std::string user_name();

}  // namespace gnomon::cli
