// The real gnomon-trainer under a real gnomond, which can be killed, lose its ledger and come back.
#pragma once

#include <memory>
#include <string>

#include "tests/support/daemon_process.h"
#include "tests/trainer/trainer_fixture.h"

namespace gnomon::test {

class DaemonFixture : public TrainerFixture {
 protected:
  std::unique_ptr<ChildProcess> start_supervised(const std::filesystem::path& config) {
    return start(config, {"--controller", daemon_.url()});
  }
  // The row of that number; empty while there is none.
  boost::json::object directive(int64_t number) const {
    for (const boost::json::value& row : daemon_.rows("directives")) {
      if (row.at("number").as_int64() == number) return row.as_object();
    }
    return {};
  }
  // Waits until the directive is in that state.
  bool reaches(int64_t number, const std::string& state) const {
    return eventually([&] {
      const boost::json::object row = directive(number);
      return !row.empty() && row.at("state").as_string() == state;
    });
  }

  DaemonProcess daemon_{{}, "[window]\nevery = 10\nsteps = 10\n"};
};

}  // namespace gnomon::test
