#include "controller/api/session.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http.hpp>
#include <cctype>

namespace gnomon {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;

constexpr size_t kHeaderMax = 16 << 10;
constexpr auto kHangUpCheck = std::chrono::seconds(2);

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return result;
}

}  // namespace

struct Session::Incoming {
  http::request_parser<http::string_body> parser;
  bool body_read = false;
  std::string route_name = "unknown";
  bool timed = true;
};

// What a coroutine sleeps on until another thread wakes it. Belongs to the coroutine's strand.
struct Session::Signal {
  explicit Signal(const Strand& strand_in) : strand(strand_in), timer(strand_in) {}
  Strand strand;
  asio::steady_timer timer;
  bool set = false;
  std::exception_ptr error;
};

// From any thread. The coroutine goes to sleep in the same run of its strand in which it made the
// signal, so this can only run afterwards.
void Session::fire(const std::shared_ptr<Signal>& signal, std::exception_ptr error) {
  asio::post(signal->strand, [signal, error] {
    signal->set = true;
    signal->error = error;
    signal->timer.cancel();
  });
}

void Session::stop() {
  asio::post(strand_, [session = shared_from_this()] {
    if (session->idle_) {
      session->stream_.close();
    }
  });
}

void Session::sleep(Signal& signal) {
  while (!signal.set) {
    signal.timer.expires_at(Clock::time_point::max());
    boost::system::error_code ignored;
    signal.timer.async_wait((*yield_)[ignored]);
  }
}

void Session::write(Ledger::Write write) {
  auto signal = std::make_shared<Signal>(strand_);
  if (!services_.ledger.post(std::move(write),
                             [signal](std::exception_ptr error) { fire(signal, error); })) {
    throw LedgerBusy("the ledger's queue of writes is full");
  }
  sleep(*signal);
  if (signal->error) {
    std::rethrow_exception(signal->error);
  }
}

void Session::read(Ledger::Read read) {
  auto signal = std::make_shared<Signal>(strand_);
  if (!services_.ledger.post_read(std::move(read),
                                  [signal](std::exception_ptr error) { fire(signal, error); })) {
    throw LedgerBusy("the ledger's queue of reads is full");
  }
  sleep(*signal);
  if (signal->error) {
    std::rethrow_exception(signal->error);
  }
}

bool Session::wait(Bell& bell, uint64_t seen, Clock::time_point deadline) {
  auto signal = std::make_shared<Signal>(strand_);
  uint64_t ticket = bell.wait(seen, [signal] { fire(signal, nullptr); });
  if (ticket == 0) {
    return !services_.stopping;
  }
  while (!signal->set && Clock::now() < deadline && !over()) {
    signal->timer.expires_at(std::min(deadline, Clock::now() + kHangUpCheck));
    boost::system::error_code ignored;
    signal->timer.async_wait((*yield_)[ignored]);
  }
  bell.forget(ticket);
  return signal->set && !services_.stopping;
}

// A closed connection reads as zero bytes. One that only has nothing to say is alive.
bool Session::hung_up() {
  char byte = 0;
  ssize_t size = ::recv(stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return size == 0 || (size < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

void Session::start_stream(const std::string& content_type) {
  http::response<http::empty_body> head{http::status::ok, 11};
  head.set(http::field::content_type, content_type);
  head.set(http::field::cache_control, "no-cache");
  head.keep_alive(false);
  http::response_serializer<http::empty_body> serializer(head);
  stream_.expires_after(options_.read_timeout);
  http::async_write_header(stream_, serializer, *yield_);
}

bool Session::send(std::string_view text) {
  stream_.expires_after(options_.read_timeout);
  boost::system::error_code error;
  asio::async_write(stream_, asio::buffer(text), (*yield_)[error]);
  stream_.expires_never();
  return !error;
}

void Session::answer(const Response& response, unsigned version, bool keep_alive) {
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
  stream_.expires_after(options_.read_timeout);
  http::async_write(stream_, out, *yield_);
  stream_.expires_never();
}

// Reads the rest of the request, or throws the answer that the client gets.
void Session::read_body(Incoming& incoming, size_t body_max) {
  auto& parser = incoming.parser;
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
  incoming.body_read = true;
}

Response Session::handle(Incoming& incoming) {
  try {
    const auto& head = incoming.parser.get();
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
    const Route& route = router_.find(request);
    incoming.route_name = route.pattern;
    incoming.timed = route.timed;
    read_body(incoming, route.body_max);
    if (!head.body().empty()) {
      Router::check_content_type(route, request);
    }
    request.body = std::move(incoming.parser.get().body());
    stream_.expires_never();
    return route.handler(*this, request);
  } catch (const boost::system::system_error&) {
    throw;  // the connection broke
  } catch (...) {
    return response_for(std::current_exception());
  }
}

void Session::answer_broken_header(boost::system::error_code error) {
  bool large = error == http::error::header_limit;
  answer(problem_response({"about:blank", large ? "Header too large" : "Malformed request",
                           large ? 431 : 400, error.message(),
                           large ? "at most 16384 bytes of header" : "HTTP/1.1"}),
         11, false);
  linger();
}

// One request and its answer. False when the connection is over.
bool Session::serve_one() {
  Incoming incoming;
  auto& parser = incoming.parser;
  parser.header_limit(kHeaderMax);
  parser.body_limit(boost::none);
  boost::system::error_code error;
  idle_ = true;
  stream_.expires_after(options_.idle_timeout);
  http::async_read_header(stream_, buffer_, parser, (*yield_)[error]);
  idle_ = false;
  if (error == http::error::end_of_stream || error == beast::error::timeout || services_.stopping) {
    return false;
  }
  if (error) {
    // Any other category: the connection broke.
    if (error.category() == http::make_error_code(http::error::end_of_stream).category()) {
      answer_broken_header(error);
    }
    return false;
  }
  Clock::time_point start = Clock::now();
  stream_.expires_after(options_.read_timeout);
  unsigned version = parser.get().version();
  bool wants_more = parser.get().keep_alive();
  Response response = handle(incoming);
  services_.metrics.request(incoming.route_name, response.status,
                            std::chrono::duration<double>(Clock::now() - start).count(),
                            incoming.timed);
  if (response.streamed) {
    return false;
  }
  bool unread = !incoming.body_read && !parser.is_done();
  bool keep_alive = wants_more && !unread && !services_.stopping;
  answer(response, version, keep_alive);
  if (unread) {
    linger();
  }
  return keep_alive;
}

// After an answer to a request whose body was not read: closing at once would reset the connection
// before the client has read the answer.
void Session::linger() {
  boost::system::error_code error;
  stream_.socket().shutdown(tcp::socket::shutdown_send, error);
  stream_.expires_after(std::chrono::seconds(2));
  std::array<char, 16384> waste;
  size_t total = 0;
  while (!error && total < (size_t{64} << 20)) {
    total += stream_.async_read_some(asio::buffer(waste), (*yield_)[error]);
  }
}

void Session::refuse_connection() {
  answer(problem_response({"about:blank", "Too many connections", 503,
                           fmt::format("{} connections are open", options_.connections_max),
                           "the same request a little later"}),
         11, false);
  linger();
}

void Session::run(asio::yield_context yield, bool refuse) {
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

}  // namespace gnomon
