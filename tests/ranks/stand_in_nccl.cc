// A library that takes NCCL's place in tests: its sends and receives go between processes through
// files of a folder, in memory of the host, and its communicators do not block. STAND_IN_NCCL, as
// "what:rank:group", has it do wrong in that rank's group of that number, from 1; 0 is the start.
//   remote  the group fails after a while
//   idle    it succeeds, and fails after that
//   hang    it goes on for ever
//   stuck   the call itself does not return
#include <nccl.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace fs = std::filesystem;

namespace {

constexpr std::chrono::milliseconds kRest{1};
constexpr std::chrono::milliseconds kWhile{50};

struct Operation {
  const char* data = nullptr;  // to send
  char* room = nullptr;        // to receive into
  size_t bytes = 0;
  int other = 0;
};

}  // namespace

struct ncclComm {
  fs::path folder;
  int rank = 0, size = 0, groups = 0;
  std::vector<Operation> operations;  // of the group that is open
  std::map<int, int> sent, received;  // messages so far, by rank
  std::atomic<ncclResult_t> state{ncclSuccess};
  std::atomic<bool> aborted{false};
  std::thread worker;

  fs::path message(int from, int to, int number) const {
    return folder /
           (std::to_string(from) + "-" + std::to_string(to) + "-" + std::to_string(number));
  }
  // Nothing when it is aborted first.
  bool wait_for(const fs::path& file) const {
    while (!aborted && !fs::exists(file)) std::this_thread::sleep_for(kRest);
    return !aborted;
  }
  static void write(const fs::path& file, const char* data, size_t bytes) {
    const fs::path part = file.string() + ".part";
    std::ofstream(part, std::ios::binary).write(data, static_cast<std::streamsize>(bytes));
    // Another rank that aborts takes the folder with it; whoever waits for the file is aborted too.
    std::error_code gone;
    fs::rename(part, file, gone);
  }

  bool told_to(const char* what) const {
    const char* told = std::getenv("STAND_IN_NCCL");
    return told != nullptr &&
           told == std::string(what) + ":" + std::to_string(rank) + ":" + std::to_string(groups);
  }

  ncclResult_t run() {
    if (told_to("hang")) {
      while (!aborted) std::this_thread::sleep_for(kRest);
    }
    if (told_to("remote")) {
      std::this_thread::sleep_for(kWhile);
      return ncclRemoteError;
    }
    for (const Operation& it : operations) {
      if (it.data != nullptr) write(message(rank, it.other, sent[it.other]++), it.data, it.bytes);
    }
    for (const Operation& it : operations) {
      if (it.room == nullptr) continue;
      const fs::path file = message(it.other, rank, received[it.other]++);
      if (!wait_for(file)) return ncclSystemError;
      if (fs::file_size(file) != it.bytes) return ncclInvalidUsage;
      std::ifstream(file, std::ios::binary).read(it.room, static_cast<std::streamsize>(it.bytes));
      fs::remove(file);
    }
    return ncclSuccess;
  }

  template <class Work>
  void begin(Work work) {
    if (worker.joinable()) worker.join();
    state = ncclInProgress;
    worker = std::thread([this, work] {
      state = work();
      if (!told_to("idle")) return;
      std::this_thread::sleep_for(kWhile);
      state = ncclRemoteError;
    });
  }
};

namespace {

thread_local ncclComm* open_group = nullptr;

ncclResult_t add(ncclComm* communicator, const Operation& operation) {
  open_group = communicator;
  communicator->operations.push_back(operation);
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  const char* told = std::getenv("STAND_IN_NCCL_VERSION");
  *version = told == nullptr ? NCCL_VERSION_CODE : std::atoi(told);
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::string pattern = (fs::temp_directory_path() / "stand-in-nccl-XXXXXX").string();
  std::memset(id->internal, 0, sizeof(id->internal));
  pattern.copy(id->internal, sizeof(id->internal) - 1);
  return mkdtemp(id->internal) == nullptr ? ncclSystemError : ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidArgument;
  auto* communicator = new ncclComm;
  communicator->folder = id.internal;
  communicator->rank = rank;
  communicator->size = size;
  *made = communicator;
  communicator->begin([communicator] {
    if (communicator->told_to("remote")) return ncclRemoteError;
    if (communicator->told_to("hang")) {
      while (!communicator->aborted) std::this_thread::sleep_for(kRest);
    }
    ncclComm::write(communicator->folder / ("here-" + std::to_string(communicator->rank)), "", 0);
    for (int other = 0; other < communicator->size; ++other) {
      if (!communicator->wait_for(communicator->folder / ("here-" + std::to_string(other)))) {
        return ncclSystemError;
      }
    }
    return ncclSuccess;
  });
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state) {
  *state = communicator->state;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
  communicator->begin([] { return ncclSuccess; });
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  if (communicator->worker.joinable()) communicator->worker.join();
  const auto gone = [&](int rank) {
    return communicator->folder / ("gone-" + std::to_string(rank));
  };
  std::error_code ignored;
  ncclComm::write(gone(communicator->rank), "", 0);
  bool all = true;
  for (int other = 0; other < communicator->size; ++other) {
    all = all && fs::exists(gone(other), ignored);
  }
  if (all) fs::remove_all(communicator->folder, ignored);
  delete communicator;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  std::fputs("stand-in: aborted\n", stderr);
  communicator->aborted = true;
  std::error_code ignored;
  fs::remove_all(communicator->folder, ignored);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() { return ncclSuccess; }

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int other,
                      ncclComm_t communicator, cudaStream_t) {
  if (type != ncclUint8) return ncclInvalidArgument;
  return add(communicator, {static_cast<const char*>(data), nullptr, count, other});
}

ncclResult_t ncclRecv(void* room, size_t count, ncclDataType_t type, int other,
                      ncclComm_t communicator, cudaStream_t) {
  if (type != ncclUint8) return ncclInvalidArgument;
  return add(communicator, {nullptr, static_cast<char*>(room), count, other});
}

ncclResult_t ncclGroupEnd() {
  ncclComm* communicator = open_group;
  open_group = nullptr;
  if (communicator == nullptr) return ncclSuccess;
  ++communicator->groups;
  if (communicator->told_to("stuck")) {
    while (true) std::this_thread::sleep_for(kWhile);
  }
  communicator->begin([communicator] {
    const ncclResult_t result = communicator->run();
    communicator->operations.clear();
    return result;
  });
  return ncclInProgress;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "another error";
}

const char* ncclGetLastError(ncclComm_t) { return "stand-in: as it was told to"; }

}  // extern "C"
