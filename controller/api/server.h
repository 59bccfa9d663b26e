// The HTTP server: Boost.Beast on a few I/O threads, a stackful coroutine for each connection.
// Everything of Asio and Beast is behind this header.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "controller/api/client_connections.h"
#include "controller/api/router.h"
#include "controller/api/services.h"
#include "protocol/tls_context.h"

namespace gnomon {

struct ServerOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  int threads = 2;
  size_t connections_max = 1024;            // beyond it: 503
  size_t transfer_max = size_t{128} << 20;  // bytes of bodies and answers at once; beyond it: 503
  std::chrono::seconds read_timeout{30};    // for a request once it has begun
  std::chrono::seconds idle_timeout{120};   // between requests
  std::chrono::seconds drain_timeout{0};    // unready but serving, between SIGTERM and the stop
  std::chrono::seconds stop_timeout{10};    // for requests in flight when the daemon stops
  // What a connection that begins now is to use, from any thread; without it all are plain.
  std::function<TlsContext()> tls = {};
};

class Server {
 public:
  // Listens at once; who connects waits for run(). Throws SystemError when the address cannot be
  // had.
  explicit Server(ServerOptions options);
  // Ends coroutines that are still there, and what they wait for must be over: see run().
  ~Server();

  uint16_t port() const;
  ClientConnections::Counts connections() const;
  void look_at_tokens();  // what waits in the name of a token that is over ends; from any thread
  size_t bytes_held() const;  // of bodies and answers on their way, small ones not counted
  // Calls `action` on an I/O thread again and again, `interval` after it last returned. Before
  // run().
  void every(std::chrono::milliseconds interval, std::function<void()> action);
  // Calls `action` once when the end begins. Before run().
  void on_stop(std::function<void()> action);
  // Calls `action` on an I/O thread, in turn with the timers, once run() was called. From any
  // thread.
  void post(std::function<void()> action);
  // Ends run(): `services` are draining, and everything but new leases is answered for
  // drain_timeout. A second call ends that time. From any thread, before run() too.
  void stop();
  // Serves until stop(), and then answers what is in flight. Both references must outlive the
  // server; the ledger of `services` must be closed before the server is.
  void run(Services& services, const Router& router);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// "127.0.0.1:7717", "[::1]:0", "0.0.0.0:7717". Throws ConfigError.
ServerOptions parse_listen(const std::string& text);
// True when nobody outside this machine can connect to its address.
bool is_loopback(const ServerOptions& options);

}  // namespace gnomon
