#include "cli/user_name.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>

namespace gnomon::cli {

std::string user_name() {
  if (const char* user = std::getenv("USER")) return user;
  const passwd* entry = ::getpwuid(::getuid());
  return entry == nullptr ? "" : entry->pw_name;
}

}  // namespace gnomon::cli
