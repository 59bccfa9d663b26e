// A real gnomond with a ledger of its own, which can be killed, lose its ledger and come back.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "protocol/client.h"
#include "tests/trainer/child_process.h"

namespace gnomon::testing {

// Always on the port it had first.
class RealDaemon {
 public:
  explicit RealDaemon(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
    write_file_atomically(folder_ / "policy.toml", "[window]\nevery = 10\nsteps = 10\n");
  }

  void start() {
    std::filesystem::remove(folder_ / "port");
    process_ = std::make_unique<ChildProcess>(
        std::vector<std::string>{GNOMOND, "--ledger", (folder_ / "ledger.sqlite").string(),
                                 "--listen", fmt::format("127.0.0.1:{}", port_), "--port-file",
                                 (folder_ / "port").string(), "--policy",
                                 (folder_ / "policy.toml").string()},
        folder_ / "log");
    ASSERT_TRUE(eventually(
        [this] { return std::filesystem::exists(folder_ / "port") || !process_->running(); }));
    ASSERT_TRUE(process_->running()) << process_->output();
    port_ = std::stoi(read_file(folder_ / "port"));
  }
  void kill() { process_.reset(); }
  void lose_ledger() {
    for (const char* suffix : {"", "-wal", "-shm"})
      std::filesystem::remove(folder_ / (std::string("ledger.sqlite") + suffix));
  }
  std::filesystem::path ledger() const { return folder_ / "ledger.sqlite"; }
  std::string url() const { return fmt::format("http://127.0.0.1:{}", port_); }
  std::string log() const { return read_file(folder_ / "log"); }
  // Rows of GET /v1/runs/run-1/`what`; none while there is no such run.
  boost::json::array rows(const std::string& what) const {
    const HttpResponse response = HttpClient(url()).request("GET", "/v1/runs/run-1/" + what);
    return response.status == 200 ? boost::json::parse(response.body).as_array()
                                  : boost::json::array();
  }

 private:
  std::filesystem::path folder_;
  int port_ = 0;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace gnomon::testing
