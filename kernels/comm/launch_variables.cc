#include "kernels/comm/launch_variables.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/errors.h"

namespace gnomon {
namespace {

constexpr int kNumberMax = 1 << 30;

[[noreturn]] void refuse(const std::string& name, const std::optional<std::string>& value,
                         const std::string& accepted) {
  throw Error(fmt::format("the environment's {} is {}; accepted: {}", name,
                          value ? "\"" + *value + "\"" : "not set", accepted));
}

std::optional<int> number(const Variables& variables, const std::string& name) {
  const std::optional<std::string> text = variables(name);
  if (!text) return std::nullopt;
  int value = 0;
  const char* end = text->data() + text->size();
  const auto [stopped, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || stopped != end || value < 0 || value > kNumberMax) {
    refuse(name, text, "a whole number, 0 or more");
  }
  return value;
}

int needed(const Variables& variables, const std::string& name, const std::string& what) {
  const std::optional<int> value = number(variables, name);
  if (!value) refuse(name, std::nullopt, what);
  return *value;
}

// "node07" of "node[07-09,12],other3".
std::string first_host(const std::string& list) {
  std::string host;
  for (size_t at = 0; at < list.size() && list[at] != ','; ++at) {
    if (list[at] != '[') {
      host += list[at];
      continue;
    }
    const size_t closed = std::min(list.find(']', at), list.size());
    const size_t ends = std::min(list.find_first_of("-,]", at), list.size());
    host += list.substr(at + 1, ends - at - 1);
    at = closed;
  }
  return host;
}

bool many(const Variables& variables, const std::string& name) {
  return number(variables, name).value_or(0) > 1;
}

bool has_torchrun_variables(const Variables& variables) { return many(variables, "WORLD_SIZE"); }

// A batch script that Slurm runs by itself has SLURM_NTASKS too; only srun says how many a step
// has.
bool in_slurm_step(const Variables& variables) {
  return many(variables, "SLURM_STEP_NUM_TASKS") && variables("SLURM_PROCID");
}

bool by_mpi_launcher(const Variables& variables) {
  if (many(variables, "OMPI_COMM_WORLD_SIZE") || many(variables, "PMI_SIZE")) return true;
  return in_slurm_step(variables) && (variables("PMIX_RANK") || variables("PMI_RANK"));
}

tcp::Meeting of_torchrun(const Variables& variables) {
  tcp::Meeting meeting;
  meeting.size = needed(variables, "WORLD_SIZE", "the number of ranks");
  meeting.rank = needed(variables, "RANK", "this process's number, 0 to WORLD_SIZE - 1");
  if (meeting.rank >= meeting.size) {
    refuse("RANK", variables("RANK"),
           fmt::format("0 to {}: WORLD_SIZE is {}", meeting.size - 1, meeting.size));
  }
  meeting.address = variables("MASTER_ADDR").value_or("");
  if (meeting.address.empty()) {
    refuse("MASTER_ADDR", variables("MASTER_ADDR"), "the name or address of rank 0's host");
  }
  meeting.port = needed(variables, "MASTER_PORT", "a port of rank 0's host, 1 to 65535");
  // torchrun's own agent listens at that port then.
  if (variables("TORCHELASTIC_USE_AGENT_STORE") == "True") ++meeting.port;
  meeting.job = variables("TORCHELASTIC_RUN_ID").value_or(variables("SLURM_JOB_ID").value_or(""));
  return meeting;
}

tcp::Meeting of_slurm(const Variables& variables) {
  tcp::Meeting meeting;
  meeting.size = needed(variables, "SLURM_STEP_NUM_TASKS", "the number of ranks");
  meeting.rank = needed(variables, "SLURM_PROCID", "this process's number");
  if (meeting.rank >= meeting.size) {
    refuse("SLURM_PROCID", variables("SLURM_PROCID"),
           fmt::format("0 to {}: SLURM_STEP_NUM_TASKS is {}", meeting.size - 1, meeting.size));
  }
  meeting.address =
      variables("MASTER_ADDR").value_or(first_host(variables("SLURM_STEP_NODELIST").value_or("")));
  if (meeting.address.empty()) {
    refuse("SLURM_STEP_NODELIST", variables("SLURM_STEP_NODELIST"),
           "the step's hosts, or MASTER_ADDR, rank 0's");
  }
  const int job = number(variables, "SLURM_JOB_ID").value_or(0);
  const int step = number(variables, "SLURM_STEP_ID").value_or(0);
  const int64_t mixed = job + int64_t{101} * step;
  meeting.port = number(variables, "MASTER_PORT").value_or(static_cast<int>(20000 + mixed % 10000));
  meeting.job = fmt::format("slurm {}.{}", job, step);
  return meeting;
}

}  // namespace

Variables environment_variables() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

Launch read_launch(const Variables& variables, bool with_mpi) {
  if (with_mpi && by_mpi_launcher(variables)) return {Launch::By::kMpi, {}};
  Launch launch{Launch::By::kVariables, {}};
  if (has_torchrun_variables(variables)) {
    launch.meeting = of_torchrun(variables);
  } else if (in_slurm_step(variables)) {
    launch.meeting = of_slurm(variables);
  } else if (by_mpi_launcher(variables)) {
    throw Error(
        "started as one of several ranks by an MPI launcher, but this build has no MPI: install an "
        "MPI library (libopenmpi-dev) and build again, set RANK, WORLD_SIZE, MASTER_ADDR and "
        "MASTER_PORT for every process, or start a single one");
  } else {
    return {};
  }
  if (const auto seconds = number(variables, "GNOMON_RENDEZVOUS_SECONDS")) {
    launch.meeting.seconds_max = *seconds;
  }
  if (const auto job = variables("GNOMON_JOB")) launch.meeting.job = *job;
  return launch;
}

std::optional<int> local_rank(const Variables& variables) {
  for (const char* name :
       {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    if (const auto value = number(variables, name)) return value;
  }
  return std::nullopt;
}

}  // namespace gnomon
