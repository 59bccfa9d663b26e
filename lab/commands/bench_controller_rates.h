// The part `rates` of `gnomon bench controller`: what gnomond takes in a second and how soon a
// directive comes, in turn with etcd and pushgateway.
#pragma once

#include <boost/json.hpp>
#include <string>

namespace gnomon::cli {

struct RateOptions {
  std::string gnomond;
  std::string folder;  // where ledgers are made: the disk that is measured
  double seconds = 5;  // of each load
  int rounds = 3;
  bool peers = true;   // etcd and pushgateway too
  bool quick = false;  // one short round: whether it works
};

// Medians by plain keys; "rounds" has all values of a key, "missing" why a key is null.
boost::json::object measure_rates(RateOptions options);
// Says on the standard error what the benchmark does now.
void print_progress(const char* what);
void print_rates(const boost::json::object& result);

}  // namespace gnomon::cli
