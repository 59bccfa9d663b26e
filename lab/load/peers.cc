#include "lab/load/peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/errors.h"
#include "base/files.h"
#include "lab/load/daemon.h"
#include "lab/load/load_client.h"

namespace gnomon::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKey = "runs/1/steps/1";
constexpr int kValueBytes = 300;  // a step's report has about as many

// A field of a Protocol Buffers message with a length before its bytes (wire type 2).
std::string field(int number, const std::string& bytes) {
  std::string out(1, static_cast<char>(number << 3 | 2));
  size_t length = bytes.size();
  for (; length > 127; length >>= 7) out += static_cast<char>((length & 127) | 128);
  out += static_cast<char>(length);
  return out + bytes;
}

// etcdserverpb.PutRequest {key = 1, value = 2} as one message of gRPC: a byte that says that it is
// not compressed, its length as four bytes, the message.
std::string put_message() {
  const std::string request = field(1, kKey) + field(2, std::string(kValueBytes, 'x'));
  std::string out(1, '\0');
  for (int shift = 24; shift >= 0; shift -= 8) {
    out += static_cast<char>(request.size() >> shift & 255);
  }
  return out + request;
}

// h2load writes a line for each request: when it began, its status, how long it took, in
// microseconds.
LoadResult read_log(const fs::path& log, const PeerLoad& load) {
  std::ifstream lines(log);
  LoadResult result;
  result.seconds = load.seconds;
  int64_t first = 0;
  double start = 0, duration = 0;
  int status = 0;
  while (lines >> start >> status >> duration) {
    if (first == 0) first = static_cast<int64_t>(start);
    if (status != 200 && status != 202) ++result.failures;
    if (start - static_cast<double>(first) < load.warm_seconds * 1e6) continue;
    ++result.requests;
    result.latencies.add(duration * 1e-6);
  }
  if (result.failures > 0) throw Error(fmt::format("{} requests were refused", result.failures));
  return result;
}

LoadResult run_h2load(const std::string& h2load, const fs::path& folder, const PeerLoad& load,
                      const std::vector<std::string>& request) {
  const fs::path log = folder / "h2load.log";
  fs::remove(log);
  const double milliseconds = 1e3 * (load.warm_seconds + load.seconds);
  std::vector<std::string> command = {h2load,
                                      "-c",
                                      std::to_string(load.connections),
                                      "-t",
                                      "1",
                                      "-m",
                                      "1",
                                      fmt::format("--duration={}ms", std::lround(milliseconds)),
                                      "--log-file=" + log.string()};
  command.insert(command.end(), request.begin(), request.end());
  const EndedProcess ended = run_to_end(command);
  if (ended.status != 0) throw Error("h2load failed: " + ended.output);
  return read_log(log, load);
}

std::string first_line_of(const std::vector<std::string>& command) {
  const EndedProcess ended = run_to_end(command);
  return ended.output.substr(0, ended.output.find('\n'));
}

// Their paths; an empty one is said in `missing`.
bool all_installed(const std::vector<std::pair<const char*, const char*>>& programs,
                   std::vector<std::string>& paths, std::string& missing) {
  for (const auto& [program, package] : programs) {
    paths.push_back(on_path(program));
    if (paths.back().empty())
      missing = fmt::format("{} is not installed (Debian: {})", program, package);
  }
  return missing.empty();
}

int64_t etcd_revision(int port) {
  HttpClient client(fmt::format("http://127.0.0.1:{}", port));
  const boost::json::value answer = boost::json::parse(
      client.checked("POST", "/v3/kv/range", R"({"key":"AA==","count_only":true})").body);
  return std::stoll(std::string(answer.at("header").at("revision").as_string()));
}

class Etcd : public Peer {
 public:
  // `programs`: etcd and h2load.
  Etcd(std::vector<std::string> programs, const fs::path& folder)
      : Peer(first_line_of({programs[0], "--version"})),
        h2load_(programs[1]),
        folder_(folder),
        port_(free_port()),
        served_(command(programs[0], folder, port_), folder, port_) {
    const bool ready = eventually([&] {
      try {
        return etcd_revision(port_) > 0;
      } catch (const Error&) {
        return false;  // it has no leader yet
      }
    });
    if (!ready) throw Error("etcd had no leader after a minute");
    write_file_atomically(folder_ / "put", put_message());
  }
  ~Etcd() override { served_.stop(); }

  LoadResult load(const PeerLoad& load) override {
    const int64_t before = etcd_revision(port_);
    LoadResult result =
        run_h2load(h2load_, folder_, load,
                   {"-d", (folder_ / "put").string(), "-H", "content-type: application/grpc", "-H",
                    "te: trailers", fmt::format("http://127.0.0.1:{}/etcdserverpb.KV/Put", port_)});
    const int64_t recorded = etcd_revision(port_) - before;
    if (recorded < result.requests) {
      throw Error(
          fmt::format("etcd has {} puts on record, {} were answered", recorded, result.requests));
    }
    return result;
  }

 private:
  static std::vector<std::string> command(const std::string& etcd, const fs::path& folder,
                                          int port) {
    const std::string url = fmt::format("http://127.0.0.1:{}", port);
    const std::string peer_url = fmt::format("http://127.0.0.1:{}", free_port());
    return {etcd,
            "--data-dir",
            (folder / "data").string(),
            "--listen-client-urls",
            url,
            "--advertise-client-urls",
            url,
            "--listen-peer-urls",
            peer_url,
            "--initial-advertise-peer-urls",
            peer_url,
            "--initial-cluster",
            "default=" + peer_url};
  }

  std::string h2load_;
  fs::path folder_;
  int port_;
  Served served_;
};

class Pushgateway : public Peer {
 public:
  // `programs`: prometheus-pushgateway and h2load. The gateway keeps a file of its own, not the
  // system's.
  Pushgateway(std::vector<std::string> programs, const fs::path& folder)
      : Peer(first_line_of({programs[0], "--version"})),
        h2load_(programs[1]),
        folder_(folder),
        port_(free_port()),
        served_({programs[0], fmt::format("--web.listen-address=127.0.0.1:{}", port_),
                 fmt::format("--persistence.file={}", (folder / "data").string())},
                folder, port_) {
    write_file_atomically(folder_ / "push",
                          "# TYPE gnomon_loss gauge\ngnomon_loss 3.2\n# TYPE gnomon_step gauge\n"
                          "gnomon_step 17\n# TYPE gnomon_grad_norm gauge\ngnomon_grad_norm 0.5\n");
  }
  ~Pushgateway() override { served_.stop(); }

  LoadResult load(const PeerLoad& load) override {
    return run_h2load(h2load_, folder_, load,
                      {"--h1", "-d", (folder_ / "push").string(), "-H", "content-type: text/plain",
                       fmt::format("http://127.0.0.1:{}/metrics/job/bench/instance/one", port_)});
  }

 private:
  std::string h2load_;
  fs::path folder_;
  int port_;
  Served served_;
};

}  // namespace

std::unique_ptr<Peer> start_etcd(const fs::path& folder, std::string& missing) {
  std::vector<std::string> paths;
  if (!all_installed({{"etcd", "etcd-server"}, {"h2load", "nghttp2-client"}}, paths, missing)) {
    return nullptr;
  }
  return std::make_unique<Etcd>(std::move(paths), folder);
}

std::unique_ptr<Peer> start_pushgateway(const fs::path& folder, std::string& missing) {
  std::vector<std::string> paths;
  if (!all_installed(
          {{"prometheus-pushgateway", "prometheus-pushgateway"}, {"h2load", "nghttp2-client"}},
          paths, missing)) {
    return nullptr;
  }
  return std::make_unique<Pushgateway>(std::move(paths), folder);
}

}  // namespace gnomon::bench
