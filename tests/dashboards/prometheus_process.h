// A real Prometheus that scrapes one gnomond each second.
#pragma once

#include <boost/json.hpp>
#include <filesystem>
#include <memory>
#include <string>

#include "protocol/client.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace gnomon::dashboards {

class PrometheusProcess {
 public:
  // Waits until it is ready. `rules`: the text of a rule file; empty for none. `tls_ca`: the
  // authority's certificate of a daemon that speaks TLS.
  void start(int daemon_port, const std::string& rules = {},
             const std::filesystem::path& tls_ca = {});
  // Member "data" of the answer to GET /api/v1/PATH; null when it is refused.
  boost::json::value data(const std::string& path);
  // How many series the query finds now.
  size_t series_of(const std::string& query);
  // True when the alert fires now for the run that has this label.
  bool fires(const std::string& alert, const std::string& run);
  std::string log() const { return process_->output(); }

 private:
  test::TemporaryDirectory folder_;
  std::unique_ptr<test::ChildProcess> process_;
  std::unique_ptr<HttpClient> client_;
};

}  // namespace gnomon::dashboards
