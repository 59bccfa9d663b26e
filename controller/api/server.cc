#include "controller/api/server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/spawn.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cctype>
#include <charconv>
#include <thread>
#include <unordered_set>

namespace gnomon {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using Strand = asio::strand<asio::io_context::executor_type>;
using Clock = Exchange::Clock;

constexpr size_t kHeaderMax = 16 << 10;
constexpr size_t kStackBytes = 256 << 10;
constexpr auto kHangUpCheck = std::chrono::seconds(2);

// What a coroutine sleeps on until another thread wakes it. Belongs to the coroutine's strand.
struct Signal {
  explicit Signal(const Strand& strand_in) : strand(strand_in), timer(strand_in) {}
  Strand strand;
  asio::steady_timer timer;
  bool set = false;
  std::exception_ptr error;
};

// From any thread. The coroutine goes to sleep in the same run of its strand in which it made the
// signal, so this can only run afterwards.
void fire(const std::shared_ptr<Signal>& signal, std::exception_ptr error) {
  asio::post(signal->strand, [signal, error] {
    signal->set = true;
    signal->error = error;
    signal->timer.cancel();
  });
}

// How a coroutine may end: an exception that nobody expected ends the daemon, and the ledger is
// what counts.
void rethrow(std::exception_ptr error) {
  if (error) {
    std::rethrow_exception(error);
  }
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return result;
}

}  // namespace

struct Server::Impl {
  Impl(ServerOptions options_in, Services& services_in, Router router_in)
      : options(std::move(options_in)),
        services(services_in),
        router(std::move(router_in)),
        context(options.threads),
        accept_strand(asio::make_strand(context)),
        acceptor(accept_strand),
        signals(accept_strand),
        stop_timer(accept_strand) {}

  class Session;

  void listen();
  void accept_loop(asio::yield_context yield);
  void begin_stop();
  void forget(Session* session);

  ServerOptions options;
  Services& services;
  Router router;
  asio::io_context context;
  Strand accept_strand;
  tcp::acceptor acceptor;
  asio::signal_set signals;
  asio::steady_timer stop_timer;
  std::vector<std::shared_ptr<asio::steady_timer>> timers;
  std::mutex mutex;
  std::unordered_set<Session*> sessions;
};

// One connection. Runs in its coroutine on its own strand.
class Server::Impl::Session final : public Exchange {
 public:
  Session(Impl& server, tcp::socket socket, const Strand& strand)
      : server_(server), strand_(strand), stream_(std::move(socket)) {}

  void run(asio::yield_context yield, bool refuse);
  // From any thread: an idle connection ends now, a busy one after its answer.
  void stop(const std::shared_ptr<Session>& session) {
    asio::post(strand_, [session] {
      if (session->idle_) {
        session->stream_.close();
      }
    });
  }

  void write(Ledger::Write write) override;
  void read(Ledger::Read read) override;
  bool wait(Bell& bell, uint64_t seen, Clock::time_point deadline) override;
  bool over() override { return server_.services.stopping || hung_up(); }
  void start_stream(const std::string& content_type) override;
  bool send(std::string_view text) override;

  std::weak_ptr<Session> self;

 private:
  using Parser = http::request_parser<http::string_body>;

  bool serve_one();
  bool read_body(Parser& parser, size_t body_max);
  Response handle(Parser& parser, bool& body_read, std::string& route_name, bool& timed);
  void answer(const Response& response, unsigned version, bool keep_alive);
  void refuse_connection();
  void linger();
  bool hung_up();
  void sleep(Signal& signal);

  Impl& server_;
  Strand strand_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  asio::yield_context* yield_ = nullptr;
  bool idle_ = true;
};

void Server::Impl::Session::sleep(Signal& signal) {
  while (!signal.set) {
    signal.timer.expires_at(Clock::time_point::max());
    boost::system::error_code ignored;
    signal.timer.async_wait((*yield_)[ignored]);
  }
}

void Server::Impl::Session::write(Ledger::Write write) {
  auto signal = std::make_shared<Signal>(strand_);
  if (!server_.services.ledger.post(std::move(write),
                                    [signal](std::exception_ptr error) { fire(signal, error); })) {
    throw LedgerBusy("the ledger's queue of writes is full");
  }
  sleep(*signal);
  if (signal->error) {
    std::rethrow_exception(signal->error);
  }
}

void Server::Impl::Session::read(Ledger::Read read) {
  auto signal = std::make_shared<Signal>(strand_);
  if (!server_.services.ledger.post_read(
          std::move(read), [signal](std::exception_ptr error) { fire(signal, error); })) {
    throw LedgerBusy("the ledger's queue of reads is full");
  }
  sleep(*signal);
  if (signal->error) {
    std::rethrow_exception(signal->error);
  }
}

bool Server::Impl::Session::wait(Bell& bell, uint64_t seen, Clock::time_point deadline) {
  auto signal = std::make_shared<Signal>(strand_);
  uint64_t ticket = bell.wait(seen, [signal] { fire(signal, nullptr); });
  if (ticket == 0) {
    return !server_.services.stopping;
  }
  while (!signal->set && Clock::now() < deadline && !over()) {
    signal->timer.expires_at(std::min(deadline, Clock::now() + kHangUpCheck));
    boost::system::error_code ignored;
    signal->timer.async_wait((*yield_)[ignored]);
  }
  bell.forget(ticket);
  return signal->set && !server_.services.stopping;
}

// A closed connection reads as zero bytes. One that only has nothing to say is alive.
bool Server::Impl::Session::hung_up() {
  char byte = 0;
  ssize_t size = ::recv(stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return size == 0 || (size < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

void Server::Impl::Session::start_stream(const std::string& content_type) {
  http::response<http::empty_body> head{http::status::ok, 11};
  head.set(http::field::content_type, content_type);
  head.set(http::field::cache_control, "no-cache");
  head.keep_alive(false);
  http::response_serializer<http::empty_body> serializer(head);
  stream_.expires_after(server_.options.read_timeout);
  http::async_write_header(stream_, serializer, *yield_);
}

bool Server::Impl::Session::send(std::string_view text) {
  stream_.expires_after(server_.options.read_timeout);
  boost::system::error_code error;
  asio::async_write(stream_, asio::buffer(text), (*yield_)[error]);
  stream_.expires_never();
  return !error;
}

void Server::Impl::Session::answer(const Response& response, unsigned version, bool keep_alive) {
  http::response<http::string_body> out{static_cast<http::status>(response.status), version};
  if (!response.content_type.empty()) {
    out.set(http::field::content_type, response.content_type);
  }
  for (const auto& [name, value] : response.headers) {
    out.set(name, value);
  }
  out.keep_alive(keep_alive);
  out.body() = response.body;
  out.prepare_payload();
  stream_.expires_after(server_.options.read_timeout);
  http::async_write(stream_, out, *yield_);
  stream_.expires_never();
}

// Reads the rest of the request. False, with the connection's answer given by the exception, never
// silently.
bool Server::Impl::Session::read_body(Parser& parser, size_t body_max) {
  auto too_large = [&](const std::string& size) {
    return Refusal(413, "Body too large", fmt::format("the body has {} bytes", size),
                   fmt::format("at most {} bytes on this path", body_max));
  };
  parser.body_limit(body_max);
  if (parser.content_length() && *parser.content_length() > body_max) {
    throw too_large(fmt::format("{}", *parser.content_length()));
  }
  if (lower(parser.get()[http::field::expect]) == "100-continue") {
    std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(stream_, asio::buffer(go_on), *yield_);
  }
  boost::system::error_code error;
  http::async_read(stream_, buffer_, parser, (*yield_)[error]);
  if (error == http::error::body_limit) {
    throw too_large("more than that many");
  }
  if (error == beast::error::timeout || error == http::error::partial_message) {
    throw Refusal(408, "Request incomplete", "the body did not come in time",
                  "the whole body within 30 seconds");
  }
  if (error) {
    throw Refusal(400, "Malformed request", error.message(), "HTTP/1.1");
  }
  return true;
}

Response Server::Impl::Session::handle(Parser& parser, bool& body_read, std::string& route_name,
                                       bool& timed) {
  try {
    const auto& head = parser.get();
    Request request;
    request.method = std::string(head.method_string());
    std::string_view target(head.target().data(), head.target().size());
    size_t question = std::min(target.find('?'), target.size());
    request.path = percent_decode(target.substr(0, question), false);
    request.query =
        parse_query(question < target.size() ? target.substr(question + 1) : std::string_view());
    std::string type = lower(head[http::field::content_type]);
    request.content_type = type.substr(0, type.find_first_of("; "));
    request.last_event_id = std::string(head["Last-Event-ID"]);
    const Route& route = server_.router.find(request);
    route_name = route.pattern;
    timed = route.timed;
    body_read = read_body(parser, route.body_max);
    if (!parser.get().body().empty()) {
      Router::check_content_type(route, request);
    }
    request.body = std::move(parser.get().body());
    stream_.expires_never();
    return route.handler(*this, request);
  } catch (const boost::system::system_error&) {
    throw;  // the connection broke
  } catch (...) {
    return response_for(std::current_exception());
  }
}

// One request and its answer. False when the connection is over.
bool Server::Impl::Session::serve_one() {
  Parser parser;
  parser.header_limit(kHeaderMax);
  parser.body_limit(boost::none);
  boost::system::error_code error;
  idle_ = true;
  stream_.expires_after(server_.options.idle_timeout);
  http::async_read_header(stream_, buffer_, parser, (*yield_)[error]);
  idle_ = false;
  if (error == http::error::end_of_stream || error == beast::error::timeout ||
      server_.services.stopping) {
    return false;
  }
  if (error) {
    if (error.category() != http::make_error_code(http::error::end_of_stream).category()) {
      return false;  // the connection broke
    }
    bool large = error == http::error::header_limit;
    answer(problem_response({"about:blank", large ? "Header too large" : "Malformed request",
                             large ? 431 : 400, error.message(),
                             large ? "at most 16384 bytes of header" : "HTTP/1.1"}),
           11, false);
    linger();
    return false;
  }
  Clock::time_point start = Clock::now();
  stream_.expires_after(server_.options.read_timeout);
  bool body_read = false;
  bool timed = true;
  std::string route_name = "unknown";
  unsigned version = parser.get().version();
  bool wants_more = parser.get().keep_alive();
  Response response = handle(parser, body_read, route_name, timed);
  server_.services.metrics.request(route_name, response.status,
                                   std::chrono::duration<double>(Clock::now() - start).count(),
                                   timed);
  if (response.streamed) {
    return false;
  }
  bool unread = !body_read && !parser.is_done();
  bool keep_alive = wants_more && !unread && !server_.services.stopping;
  answer(response, version, keep_alive);
  if (unread) {
    linger();
  }
  return keep_alive;
}

// After an answer to a request whose body was not read: closing at once would reset the connection
// before the client has read the answer.
void Server::Impl::Session::linger() {
  boost::system::error_code error;
  stream_.socket().shutdown(tcp::socket::shutdown_send, error);
  stream_.expires_after(std::chrono::seconds(2));
  std::array<char, 16384> waste;
  size_t total = 0;
  while (!error && total < (size_t{64} << 20)) {
    total += stream_.async_read_some(asio::buffer(waste), (*yield_)[error]);
  }
}

void Server::Impl::Session::refuse_connection() {
  answer(problem_response({"about:blank", "Too many connections", 503,
                           fmt::format("{} connections are open", server_.options.connections_max),
                           "the same request a little later"}),
         11, false);
  linger();
}

void Server::Impl::Session::run(asio::yield_context yield, bool refuse) {
  yield_ = &yield;
  try {
    if (refuse) {
      refuse_connection();
    } else {
      while (serve_one()) {
      }
    }
  } catch (const boost::system::system_error& error) {
    spdlog::debug("a connection broke: {}", error.what());
  }
  boost::system::error_code ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
  stream_.close();
}

void Server::Impl::listen() {
  boost::system::error_code error;
  tcp::endpoint endpoint(asio::ip::make_address(options.address), options.port);
  acceptor.open(endpoint.protocol());
  acceptor.set_option(asio::socket_base::reuse_address(true));
  acceptor.bind(endpoint, error);
  if (!error) {
    acceptor.listen(asio::socket_base::max_listen_connections, error);
  }
  if (error) {
    throw SystemError("listen on", fmt::format("{}:{}", options.address, options.port),
                      error.value());
  }
}

void Server::Impl::accept_loop(asio::yield_context yield) {
  while (!services.stopping) {
    Strand strand = asio::make_strand(context);
    tcp::socket socket(strand);
    boost::system::error_code error;
    acceptor.async_accept(socket, yield[error]);
    if (error == asio::error::operation_aborted || services.stopping) {
      return;
    }
    if (error) {  // out of descriptors, say: wait instead of spinning
      asio::steady_timer pause(accept_strand, std::chrono::milliseconds(100));
      pause.async_wait(yield[error]);
      continue;
    }
    socket.set_option(tcp::no_delay(true), error);
    auto session = std::make_shared<Session>(*this, std::move(socket), strand);
    session->self = session;
    bool refuse = false;
    {
      std::lock_guard lock(mutex);
      refuse = sessions.size() >= options.connections_max;
      sessions.insert(session.get());
    }
    asio::spawn(
        strand, std::allocator_arg, boost::context::protected_fixedsize_stack(kStackBytes),
        [this, session, refuse](asio::yield_context session_yield) {
          session->run(session_yield, refuse);
          forget(session.get());
        },
        rethrow);
  }
}

void Server::Impl::begin_stop() {
  if (services.stopping.exchange(true)) {
    return;
  }
  spdlog::info("stopping: requests in flight are answered, new ones are not taken");
  boost::system::error_code ignored;
  acceptor.close(ignored);
  signals.cancel(ignored);
  for (auto& timer : timers) {
    timer->cancel();
  }
  services.bells.ring_all();
  std::lock_guard lock(mutex);
  for (Session* session : sessions) {
    if (auto alive = session->self.lock()) {
      alive->stop(alive);
    }
  }
  if (sessions.empty()) {
    return;
  }
  stop_timer.expires_after(options.stop_timeout);
  stop_timer.async_wait([this](const boost::system::error_code& error) {
    if (!error) {
      spdlog::warn("some requests did not end in time and are dropped");
      context.stop();
    }
  });
}

void Server::Impl::forget(Session* session) {
  std::lock_guard lock(mutex);
  sessions.erase(session);
  if (services.stopping && sessions.empty()) {
    asio::post(accept_strand, [this] { stop_timer.cancel(); });
  }
}

Server::Server(ServerOptions options, Services& services, Router router)
    : impl_(std::make_unique<Impl>(std::move(options), services, std::move(router))) {
  impl_->listen();
  impl_->signals.add(SIGTERM);
  impl_->signals.add(SIGINT);
}

Server::~Server() = default;

uint16_t Server::port() const { return impl_->acceptor.local_endpoint().port(); }

void Server::every(std::chrono::milliseconds interval, std::function<void()> action) {
  auto timer = std::make_shared<asio::steady_timer>(impl_->accept_strand);
  impl_->timers.push_back(timer);
  asio::spawn(
      impl_->accept_strand,
      [this, timer, interval, action = std::move(action)](asio::yield_context yield) {
        while (!impl_->services.stopping) {
          timer->expires_after(interval);
          boost::system::error_code ignored;
          timer->async_wait(yield[ignored]);
          if (!impl_->services.stopping) {
            action();
          }
        }
      },
      rethrow);
}

void Server::run() {
  Impl& impl = *impl_;
  impl.signals.async_wait([&impl](const boost::system::error_code& error, int) {
    if (!error) {
      impl.begin_stop();
    }
  });
  asio::spawn(
      impl.accept_strand, [&impl](asio::yield_context yield) { impl.accept_loop(yield); }, rethrow);
  std::vector<std::thread> others;
  for (int i = 1; i < impl.options.threads; ++i) {
    others.emplace_back([&impl] { impl.context.run(); });
  }
  impl.context.run();
  for (std::thread& thread : others) {
    thread.join();
  }
}

void Server::stop() {
  asio::post(impl_->accept_strand, [this] { impl_->begin_stop(); });
}

ServerOptions parse_listen(const std::string& text) {
  auto refuse = [&] {
    return ConfigError("command line", 0, "--listen", text,
                       "ADDRESS:PORT, for example 127.0.0.1:7717 or [::1]:0");
  };
  size_t colon = text.rfind(':');
  if (colon == std::string::npos) {
    throw refuse();
  }
  ServerOptions options;
  options.address = text.substr(0, colon);
  if (options.address.starts_with('[') && options.address.ends_with(']')) {
    options.address = options.address.substr(1, options.address.size() - 2);
  }
  std::string_view port = std::string_view(text).substr(colon + 1);
  auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), options.port);
  if (options.address.empty() || error != std::errc() || end != port.data() + port.size()) {
    throw refuse();
  }
  if (options.address == "localhost") {
    options.address = "127.0.0.1";
  }
  boost::system::error_code unreadable;
  if (!asio::ip::make_address(options.address, unreadable).is_loopback()) {
    throw ConfigError(
        "command line", 0, "--listen", text,
        "a loopback address (127.0.0.1 or [::1]): this version has neither TLS nor tokens");
  }
  return options;
}

}  // namespace gnomon
