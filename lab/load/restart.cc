#include "lab/load/restart.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/errors.h"
#include "base/files.h"
#include "lab/load/large_ledger.h"

namespace gnomon::bench {
namespace {

void drop_from_page_cache(const std::filesystem::path& file) {
  const FileDescriptor open_file(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  ::fdatasync(open_file.get());
  if (const int error = ::posix_fadvise(open_file.get(), 0, 0, POSIX_FADV_DONTNEED); error != 0) {
    throw SystemError("drop from the page cache", file.string(), error);
  }
}

bool ready(HttpClient& client) {
  try {
    return client.request("GET", "/readyz").status == 200;
  } catch (const ConnectionError&) {
    return false;
  }
}

double start_to_ready(const std::string& gnomond, const std::filesystem::path& folder) {
  const auto start = std::chrono::steady_clock::now();
  BenchDaemon daemon(gnomond, folder, "mode = \"observe\"\n");
  HttpClient client = daemon.client();
  if (!eventually([&] { return ready(client); })) throw Error("gnomond is not ready");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  daemon.process().stop();
  return seconds.count();
}

}  // namespace

RestartTimes measure_restart(const std::string& gnomond, const std::filesystem::path& folder,
                             double bytes, Progress& progress) {
  const std::filesystem::path ledger = folder / "ledger.sqlite";  // BenchDaemon's
  make_large_ledger(ledger, bytes, progress);
  RestartTimes times;
  times.ledger_bytes = static_cast<int64_t>(std::filesystem::file_size(ledger));
  drop_from_page_cache(ledger);
  times.cold_seconds = start_to_ready(gnomond, folder);
  times.warm_seconds = start_to_ready(gnomond, folder);
  return times;
}

}  // namespace gnomon::bench
