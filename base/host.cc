#include "base/host.h"

#include <unistd.h>

#include <climits>

namespace gnomon {

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace gnomon
