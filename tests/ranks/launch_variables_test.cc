// What launchers leave in the environment, read as it is meant or refused with what is wrong.
#include "kernels/comm/launch_variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/errors.h"
#include "kernels/cuda/device_choice.h"

namespace gnomon {
namespace {

using Values = std::map<std::string, std::string>;

Variables of(Values values) {
  return [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
    const auto it = values.find(name);
    if (it == values.end()) return std::nullopt;
    return it->second;
  };
}

const Values kTorchrun = {
    {"RANK", "3"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}};
const Values kSlurm = {{"SLURM_PROCID", "1"},
                       {"SLURM_STEP_NUM_TASKS", "4"},
                       {"SLURM_STEP_NODELIST", "node[07-09,12],other3"},
                       {"SLURM_JOB_ID", "123456"},
                       {"SLURM_STEP_ID", "2"}};

Values with(Values values, const std::string& name, const std::string& value) {
  values[name] = value;
  return values;
}
Values without(Values values, const std::string& name) {
  values.erase(name);
  return values;
}

TEST(LaunchVariables, NothingAndOneAreASingleProcess) {
  EXPECT_EQ(read_launch(of({}), true).by, Launch::By::kNothing);
  EXPECT_EQ(read_launch(of({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), true).by, Launch::By::kNothing);
  // A batch script that Slurm runs by itself.
  EXPECT_EQ(read_launch(of({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}), true).by,
            Launch::By::kNothing);
}

TEST(LaunchVariables, OfTorchrunAreRanksThatMeet) {
  const Launch launch = read_launch(of(kTorchrun), true);
  EXPECT_EQ(launch.by, Launch::By::kVariables);
  EXPECT_EQ(launch.meeting.rank, 3);
  EXPECT_EQ(launch.meeting.size, 8);
  EXPECT_EQ(launch.meeting.address, "10.0.0.1");
  EXPECT_EQ(launch.meeting.port, 29500);
  const Values agent =
      with(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "True"), "TORCHELASTIC_RUN_ID", "seven");
  EXPECT_EQ(read_launch(of(agent), true).meeting.port, 29501);
  EXPECT_EQ(read_launch(of(agent), true).meeting.job, "seven");
  EXPECT_EQ(read_launch(of(with(agent, "GNOMON_JOB", "eight")), true).meeting.job, "eight");
  EXPECT_EQ(
      read_launch(of(with(kTorchrun, "GNOMON_RENDEZVOUS_SECONDS", "7")), true).meeting.seconds_max,
      7);
}

TEST(LaunchVariables, OfSlurmAreRanksThatMeetOnTheFirstHost) {
  const Launch launch = read_launch(of(kSlurm), true);
  EXPECT_EQ(launch.by, Launch::By::kVariables);
  EXPECT_EQ(launch.meeting.rank, 1);
  EXPECT_EQ(launch.meeting.size, 4);
  EXPECT_EQ(launch.meeting.address, "node07");
  EXPECT_EQ(launch.meeting.port, 20000 + (123456 + 202) % 10000);
  EXPECT_EQ(launch.meeting.job, "slurm 123456.2");
  for (const auto& [list, first] :
       Values{{"one", "one"}, {"a1,a2", "a1"}, {"r[2,4]n[1-3],x", "r2n1"}, {"n[5]-ib", "n5-ib"}}) {
    EXPECT_EQ(read_launch(of(with(kSlurm, "SLURM_STEP_NODELIST", list)), true).meeting.address,
              first);
  }
  EXPECT_EQ(read_launch(of(with(kSlurm, "MASTER_ADDR", "here")), true).meeting.address, "here");
}

TEST(LaunchVariables, OfMpiLaunchersComeFirst) {
  const auto by = [](const Values& values) { return read_launch(of(values), true).by; };
  EXPECT_EQ(by(with(kTorchrun, "OMPI_COMM_WORLD_SIZE", "2")), Launch::By::kMpi);
  EXPECT_EQ(by({{"PMI_SIZE", "2"}}), Launch::By::kMpi);
  EXPECT_EQ(by(with(kSlurm, "PMIX_RANK", "1")), Launch::By::kMpi);
  EXPECT_EQ(by({{"OMPI_COMM_WORLD_SIZE", "1"}}), Launch::By::kNothing);
  EXPECT_EQ(read_launch(of(with(kTorchrun, "OMPI_COMM_WORLD_SIZE", "2")), false).by,
            Launch::By::kVariables)
      << "in a build without MPI";
  EXPECT_THROW(read_launch(of({{"OMPI_COMM_WORLD_SIZE", "2"}}), false), Error);
}

std::string refusal(const Values& values) {
  try {
    read_launch(of(values), true);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(LaunchVariables, ThatMakeNoSenseAreRefusedByName) {
  using testing::HasSubstr;
  EXPECT_THAT(refusal(with(kTorchrun, "RANK", "8")), HasSubstr("RANK is \"8\"; accepted: 0 to 7"));
  EXPECT_THAT(refusal(with(kTorchrun, "RANK", "-1")), HasSubstr("RANK is \"-1\""));
  EXPECT_THAT(refusal(with(kTorchrun, "RANK", "2nd")), HasSubstr("RANK is \"2nd\""));
  EXPECT_THAT(refusal(without(kTorchrun, "RANK")), HasSubstr("RANK is not set"));
  EXPECT_THAT(refusal(with(kTorchrun, "WORLD_SIZE", "many")), HasSubstr("WORLD_SIZE is \"many\""));
  EXPECT_THAT(refusal(without(kTorchrun, "MASTER_ADDR")), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(refusal(with(kTorchrun, "MASTER_ADDR", "")), HasSubstr("MASTER_ADDR is \"\""));
  EXPECT_THAT(refusal(without(kTorchrun, "MASTER_PORT")), HasSubstr("MASTER_PORT is not set"));
  EXPECT_THAT(refusal(with(kSlurm, "SLURM_PROCID", "4")), HasSubstr("SLURM_PROCID is \"4\""));
  EXPECT_THAT(refusal(without(kSlurm, "SLURM_STEP_NODELIST")), HasSubstr("SLURM_STEP_NODELIST"));
}

TEST(LaunchVariables, SayWhichOfItsHostsProcessesThisIs) {
  EXPECT_FALSE(local_rank(of({})));
  EXPECT_EQ(local_rank(of({{"LOCAL_RANK", "3"}, {"SLURM_LOCALID", "1"}})), 3);
  EXPECT_EQ(local_rank(of({{"SLURM_LOCALID", "1"}})), 1);
  EXPECT_EQ(local_rank(of({{"OMPI_COMM_WORLD_LOCAL_RANK", "2"}})), 2);
  EXPECT_THROW(local_rank(of({{"LOCAL_RANK", "x"}})), Error);
}

TEST(DeviceChoice, IsTheRanksOwnOrTheOnlyOneThatItSees) {
  EXPECT_EQ(cuda::device_of({}, 8), 0);
  EXPECT_EQ(cuda::device_of(5, 8), 5);
  EXPECT_EQ(cuda::device_of(5, 1), 0);
  EXPECT_THROW(cuda::device_of(8, 8), Error);
}

}  // namespace
}  // namespace gnomon
