// What people would otherwise send numbers to, under the same load on the same disk: etcd, which
// keeps what it acknowledges, and Prometheus' pushgateway, which does not. The load comes from
// h2load (nghttp2): 64 connections with one request in flight each.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace gnomon::bench {

struct PeerRate {
  double per_second = 0;
  double p99_seconds = 0;
  std::string version;
};

struct PeerLoad {
  int connections = 64;
  double warm_seconds = 1;
  double seconds = 5;
};

// Puts of a value as long as a step's report by gRPC. Every put is counted in etcd's revision
// afterwards, or this throws Error. Nothing, with the reason in `missing`, where a program is not
// installed.
std::optional<PeerRate> measure_etcd(const std::filesystem::path& folder, const PeerLoad& load,
                                     std::string& missing);
// Posts of a step's three numbers.
std::optional<PeerRate> measure_pushgateway(const std::filesystem::path& folder,
                                            const PeerLoad& load, std::string& missing);

}  // namespace gnomon::bench
