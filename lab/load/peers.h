// What people would otherwise send numbers to, under the same load on the same disk: etcd, which
// keeps what it acknowledges, and Prometheus' pushgateway, which does not. The load comes from
// h2load (nghttp2): 64 connections with one request in flight each. A peer runs on between its
// loads, so that it and gnomond can be loaded in turn, for short times.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "lab/load/load_client.h"

namespace gnomon::bench {

struct PeerLoad {
  int connections = 64;
  double warm_seconds = 0.25;  // not counted
  double seconds = 1;
};

class Peer {
 public:
  virtual ~Peer() = default;
  // What it answered in the counted time. Throws Error when it refuses a request, or has less on
  // record than it acknowledged.
  virtual LoadResult load(const PeerLoad& load) = 0;
  const std::string& version() const { return version_; }

 protected:
  explicit Peer(std::string version) : version_(std::move(version)) {}

 private:
  std::string version_;
};

// Puts of a value as long as a step's report by gRPC; each is counted in etcd's revision
// afterwards. Null, with the reason in `missing`, where a program is not installed.
std::unique_ptr<Peer> start_etcd(const std::filesystem::path& folder, std::string& missing);
// Posts of a step's three numbers.
std::unique_ptr<Peer> start_pushgateway(const std::filesystem::path& folder, std::string& missing);

}  // namespace gnomon::bench
