#include "bench/controller/peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/errors.h"
#include "base/files.h"
#include "bench/controller/daemon.h"
#include "bench/controller/load_client.h"

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
PeerRate rate_of(const fs::path& log, const PeerLoad& load) {
  std::ifstream lines(log);
  Latencies latencies;
  int64_t failed = 0, first = 0;
  double start = 0, duration = 0;
  int status = 0;
  while (lines >> start >> status >> duration) {
    if (first == 0) first = static_cast<int64_t>(start);
    if (status != 200 && status != 202) ++failed;
    if (start - static_cast<double>(first) < load.warm_seconds * 1e6) continue;
    latencies.add(duration * 1e-6);
  }
  if (failed > 0) throw Error(fmt::format("{} requests were refused", failed));
  return {static_cast<double>(latencies.count()) / load.seconds, latencies.quantile(0.99), {}};
}

PeerRate run_h2load(const std::string& h2load, const fs::path& folder, const PeerLoad& load,
                    const std::vector<std::string>& request) {
  const fs::path log = folder / "h2load.log";
  fs::remove(log);
  std::vector<std::string> command = {
      h2load,
      "-c",
      std::to_string(load.connections),
      "-t",
      "1",
      "-m",
      "1",
      fmt::format("--duration={}", static_cast<int>(std::lround(load.warm_seconds + load.seconds))),
      "--log-file=" + log.string()};
  command.insert(command.end(), request.begin(), request.end());
  const EndedProcess ended = run_to_end(command);
  if (ended.status != 0) throw Error("h2load failed: " + ended.output);
  return rate_of(log, load);
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

}  // namespace

std::optional<PeerRate> measure_etcd(const fs::path& folder, const PeerLoad& load,
                                     std::string& missing) {
  std::vector<std::string> paths;
  if (!all_installed({{"etcd", "etcd-server"}, {"h2load", "nghttp2-client"}}, paths, missing)) {
    return std::nullopt;
  }
  const int port = free_port(), peer_port = free_port();
  const std::string url = fmt::format("http://127.0.0.1:{}", port);
  const std::string peer_url = fmt::format("http://127.0.0.1:{}", peer_port);
  Served etcd(
      {paths[0], "--data-dir", (folder / "data").string(), "--listen-client-urls", url,
       "--advertise-client-urls", url, "--listen-peer-urls", peer_url,
       "--initial-advertise-peer-urls", peer_url, "--initial-cluster", "default=" + peer_url},
      folder, port);
  eventually([&] {
    try {
      return etcd_revision(port) > 0;
    } catch (const Error&) {
      return false;  // it has no leader yet
    }
  });
  const int64_t before = etcd_revision(port);
  write_file_atomically(folder / "put", put_message());
  PeerRate rate =
      run_h2load(paths[1], folder, load,
                 {"-d", (folder / "put").string(), "-H", "content-type: application/grpc", "-H",
                  "te: trailers", url + "/etcdserverpb.KV/Put"});
  const auto least = static_cast<int64_t>(rate.per_second * load.seconds);
  if (etcd_revision(port) - before < least) {
    throw Error(fmt::format("etcd has {} puts on record, {} were answered",
                            etcd_revision(port) - before, least));
  }
  rate.version = first_line_of({paths[0], "--version"});
  etcd.stop();
  return rate;
}

std::optional<PeerRate> measure_pushgateway(const fs::path& folder, const PeerLoad& load,
                                            std::string& missing) {
  std::vector<std::string> paths;
  if (!all_installed(
          {{"prometheus-pushgateway", "prometheus-pushgateway"}, {"h2load", "nghttp2-client"}},
          paths, missing)) {
    return std::nullopt;
  }
  const int port = free_port();
  // Its own file, not the system's.
  Served gateway({paths[0], fmt::format("--web.listen-address=127.0.0.1:{}", port),
                  fmt::format("--persistence.file={}", (folder / "data").string())},
                 folder, port);
  write_file_atomically(folder / "push",
                        "# TYPE gnomon_loss gauge\ngnomon_loss 3.2\n# TYPE gnomon_step gauge\n"
                        "gnomon_step 17\n# TYPE gnomon_grad_norm gauge\ngnomon_grad_norm 0.5\n");
  PeerRate rate =
      run_h2load(paths[1], folder, load,
                 {"--h1", "-d", (folder / "push").string(), "-H", "content-type: text/plain",
                  fmt::format("http://127.0.0.1:{}/metrics/job/bench/instance/one", port)});
  rate.version = first_line_of({paths[0], "--version"});
  gateway.stop();
  return rate;
}

}  // namespace gnomon::bench
