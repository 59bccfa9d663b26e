// The health of a GPU on its whole way: from a stand-in for the driver's library through a real
// gnomon-trainer to the ledger, the API and the metrics of a real gnomond.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <boost/json.hpp>

#include "protocol/json.h"
#include "tests/support/standin_gpu.h"
#include "tests/trainer/daemon_fixture.h"

namespace gnomon {
namespace {

using test::DaemonFixture;
using test::eventually;
using test::StandinGpu;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class DeviceHealthProcess : public DaemonFixture {
 protected:
  // A run that trains on the CPU and watches the stand-in's GPU, or another one.
  std::filesystem::path watching(int steps, const std::string& bus_id = StandinGpu::kBusId) {
    return config(steps, {}, {{"[run]\n", "[run]\nwatch_gpu = \"" + bus_id + "\"\n"}});
  }
  std::unique_ptr<test::ChildProcess> start_watched(const std::filesystem::path& file) {
    return launch({GNOMON_TRAINER, "--config", file.string(), "--controller", daemon_.url()},
                  {.environment = gpu_.environment()});
  }
  // The newest sample; nothing while there is none.
  std::optional<DeviceHealth> newest() const {
    try {
      const boost::json::value run =
          boost::json::parse(daemon_.client().checked("GET", "/v1/runs/run-1").body);
      const boost::json::value& row = run.at("device_health");
      if (row.is_null()) return std::nullopt;
      return from_json<DeviceHealth>(boost::json::serialize(row.at("body")));
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  std::string metrics() const { return daemon_.client().checked("GET", "/metrics").body; }

  StandinGpu gpu_;
};

TEST_F(DeviceHealthProcess, TravelsWithTheStepsToTheLedgerTheApiAndTheMetrics) {
  daemon_.start();
  auto trainer = start_watched(watching(1000000));
  ASSERT_TRUE(eventually([&] { return newest().has_value(); })) << trainer->output();
  EXPECT_EQ(newest()->power_watts, 520.5);
  EXPECT_EQ(newest()->name, "NVIDIA Stand-in");
  const boost::json::object row = daemon_.rows("device_health").back().as_object();
  EXPECT_GE(row.at("step").as_int64(), 1);
  EXPECT_FALSE(row.at("host").as_string().empty());
  EXPECT_EQ(row.at("device").as_string(), StandinGpu::kBusId);

  gpu_.set("celsius", "91");
  gpu_.set("reasons", "64");
  gpu_.set("ecc_uncorrected", "3");
  EXPECT_TRUE(eventually([&] { return newest()->temperature_celsius == 91.0; }));
  EXPECT_TRUE(eventually([&] { return !daemon_.rows("notices").empty(); }));
  EXPECT_THAT(std::string(daemon_.rows("notices").at(0).at("text").as_string()),
              AllOf(HasSubstr(StandinGpu::kBusId), HasSubstr("3 more uncorrected ECC errors")));
  EXPECT_THAT(metrics(),
              AllOf(HasSubstr("\ngnomon_device_temperature_celsius{device=\"0000:01:00.0\""),
                    HasSubstr("reason=\"hw_thermal_slowdown\",run=\"tiny/7\"} 1\n")));

  gpu_.set("fail", "15");
  EXPECT_TRUE(eventually([&] { return !newest()->error.empty(); }));
  EXPECT_THAT(newest()->error, HasSubstr("GPU is lost"));
  trainer->signal(SIGTERM);
  EXPECT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_THAT(trainer->output(), AllOf(HasSubstr("no health of the GPU at 0000:01:00.0"),
                                       Not(HasSubstr("refused a report"))));
}

TEST_F(DeviceHealthProcess, ARunThatWatchesNoGpuSaysNothingOfOne) {
  daemon_.start();
  auto trainer =
      launch({GNOMON_TRAINER, "--config", config(20).string(), "--controller", daemon_.url()},
             {.environment = gpu_.environment()});
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();
  EXPECT_FALSE(newest().has_value());
  EXPECT_TRUE(daemon_.rows("device_health").empty());
  EXPECT_THAT(metrics(), Not(HasSubstr("gnomon_device_up{")));
}

TEST_F(DeviceHealthProcess, ADriverThatHangsOrIsNotThereHoldsNoStepUp) {
  daemon_.start();
  gpu_.set("sleep_ms", "60000");
  auto trainer = start_watched(watching(30));
  ASSERT_EQ(trainer->wait(std::chrono::seconds(50)), 0) << trainer->output();
  EXPECT_EQ(daemon_.rows("steps").size(), 30u);
  std::filesystem::remove_all(run_dir());

  auto without = launch(
      {GNOMON_TRAINER, "--config", watching(1000000).string(), "--controller", daemon_.url()},
      {.environment = {{"LD_LIBRARY_PATH", "/no/such/folder"}}});
  // Where there is a driver, it has no GPU at such an address.
  EXPECT_TRUE(eventually([&] {
    return without->output().find("the GPU at 0000:01:00.0") != std::string::npos;
  })) << without->output();
  without->signal(SIGTERM);
  EXPECT_EQ(without->wait(), 0);
}

TEST_F(DeviceHealthProcess, ChangesNoBitOfTheRun) {
  daemon_.start();
  const auto trained = [&](const std::filesystem::path& file) {
    auto trainer = start_watched(file);
    EXPECT_EQ(trainer->wait(), 0) << trainer->output();
    const std::string hash = hash_of_model(TrainerFixture::newest(run_dir()));
    std::filesystem::remove_all(run_dir());
    daemon_.kill();
    daemon_.lose_ledger();
    daemon_.start();
    return hash;
  };
  EXPECT_EQ(trained(watching(30)), trained(config(30)));
}

TEST_F(DeviceHealthProcess, ABusIdThatIsNoneIsRefusedBeforeAnythingStarts) {
  auto trainer = start_watched(watching(30, "GPU-0"));
  EXPECT_EQ(trainer->wait(), 2);
  EXPECT_THAT(trainer->output(), AllOf(HasSubstr("run.watch_gpu"), HasSubstr("PCI bus id")));
}

}  // namespace
}  // namespace gnomon
