// One connection of the HTTP server: reads requests, gives them to their routes, answers. Private
// to this folder: it brings Asio and Beast with it.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/spawn.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "controller/api/byte_budget.h"
#include "controller/api/client_connections.h"
#include "controller/api/request_head.h"
#include "controller/api/server.h"
#include "controller/api/wire_stream.h"

namespace gnomon {

using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;

// Runs in its coroutine on its own strand.
class Session final : public Exchange,
                      public ClientConnection,
                      public std::enable_shared_from_this<Session> {
 public:
  // All references outlive the session.
  Session(const ServerOptions& options, Services& services, const Router& router,
          ClientConnections& connections, ByteBudget& bytes, boost::asio::ip::tcp::socket socket,
          const Strand& strand)
      : options_(options),
        services_(services),
        router_(router),
        connections_(connections),
        held_(bytes),
        strand_(strand),
        stream_(std::move(socket), options.tls ? options.tls() : nullptr) {}

  // Serves the connection to its end. With `refuse` the first request is answered with 503.
  void run(boost::asio::yield_context yield, bool refuse);
  void stop() override;
  void end() override;
  void look_at_token() override;

  void write(Ledger::Write write) override;
  void read(Ledger::Read read) override;
  bool wait(const Awaited& awaited, Clock::time_point deadline) override;
  bool over() override;
  bool pause() override;
  void start_stream(const std::string& content_type) override;
  bool send(std::string_view text) override;

 private:
  struct Incoming;  // a request that is being read
  struct Signal;    // what the coroutine sleeps on
  class ReadTime;   // how long a read may take

  // session.cc
  bool serve_one();
  bool await_request();
  void answer_broken_header(boost::system::error_code error);
  void answer_slow_header();
  void read_body(Incoming& incoming, size_t body_max);
  void hold(size_t bytes);
  void hold_answer(const Request& request, const Response& response);
  std::string body_of(Incoming& incoming);
  Response handle(Incoming& incoming);
  Request enter(const Incoming& incoming);
  void assign_principal();
  Response answered_by(const Route& route, Incoming& incoming, Request& request);
  void encode(const Incoming& incoming, Response& response);
  void answer(Response response, const Incoming& incoming, bool keep_alive);
  void refuse_connection();
  void linger();
  void answer_plainly(Response response);
  std::string peer_address();
  bool shake_hands();

  // session_waits.cc
  void on_reader(const std::function<void()>& work);
  bool hung_up();
  bool token_is_over() const;
  void sleep(Signal& signal);
  void watch(const std::shared_ptr<Signal>& signal);
  static void fire(const std::shared_ptr<Signal>& signal, std::exception_ptr error);

  const ServerOptions& options_;
  Services& services_;
  const Router& router_;
  ClientConnections& connections_;
  ByteBudget::Share held_;  // the body of the request at hand, then that of its answer
  Strand strand_;
  WireStream stream_;
  // Bounded, since the library looks for the end of a chunked body's trailer in it, and ends the
  // process over a field of 64 KiB. A body does not stay here.
  static constexpr size_t kBufferMax = 60 << 10;
  boost::beast::flat_buffer buffer_{kBufferMax};
  boost::asio::yield_context* yield_ = nullptr;
  bool idle_ = true;
  bool streaming_ = false;  // an answer without a known length has begun
  bool last_ = false;       // this request is
  int pauses_ = 0;
  std::weak_ptr<Signal> waiting_;  // what wait() sleeps on
  PrincipalPtr principal_;         // of the request at hand; null: a stranger
};

}  // namespace gnomon
