// What a configuration names besides itself: printed by `gnomond check-config`, and looked
// at for who else may read or write it.
#pragma once

#include <string>
#include <vector>

#include "controller/daemon/daemon_config.h"

namespace gnomon {

// A line for each file and folder that `config`, which check_daemon_config() took, names, and what
// was found in it. `now`: seconds since the epoch. Throws ConfigError when one has changed since.
std::vector<std::string> describe_named_files(const DaemonConfig& config, double now);

// A sentence for each secret that everybody on the machine may read, and for each file that decides
// who may do what and that everybody may write; and for a folder for backups that cannot be
// written. Files that are not there are passed over.
std::vector<std::string> doubtful_files(const DaemonConfig& config);

}  // namespace gnomon
