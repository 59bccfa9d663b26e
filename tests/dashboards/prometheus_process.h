// A real Prometheus that scrapes one gnomond each second.
#pragma once

#include <memory>
#include <string>

#include "protocol/client.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace gnomon::dashboards {

class PrometheusProcess {
 public:
  // Waits until it is ready. `rules`: the text of a rule file; empty for none.
  void start(int daemon_port, const std::string& rules = {});
  // How many series the query finds now.
  size_t series_of(const std::string& query);
  // Whether the alert fires now for the run that has this label.
  bool fires(const std::string& alert, const std::string& run);
  std::string log() const { return process_->output(); }

 private:
  test::TemporaryDirectory folder_;
  std::unique_ptr<test::ChildProcess> process_;
  std::unique_ptr<HttpClient> client_;
};

}  // namespace gnomon::dashboards
