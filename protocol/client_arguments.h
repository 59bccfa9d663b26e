// The options of command lines that say how gnomond is reached.
#pragma once

#include "base/command_line.h"
#include "protocol/client_options.h"

namespace gnomon {

// A token itself is never an option: every user of a machine sees its command lines.
inline void add_access_options(Command& app, ClientOptions& options) {
  app.add_option("--token-file", options.token_file,
                 "File whose first line is the token for gnomond (or GNOMON_TOKEN_FILE, "
                 "GNOMON_TOKEN)")
      ->type_name("FILE");
  app.add_option("--ca-file", options.ca_file,
                 "PEM of the authorities that gnomond's certificate may come from, in place of the "
                 "system's (or GNOMON_CA_FILE)")
      ->type_name("FILE");
  app.add_option("--certificate-file", options.certificate_file,
                 "PEM of this client's certificate (or GNOMON_CERTIFICATE_FILE)")
      ->type_name("FILE");
  app.add_option("--key-file", options.key_file, "PEM of its key (or GNOMON_KEY_FILE)")
      ->type_name("FILE");
}

}  // namespace gnomon
