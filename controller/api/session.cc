#include "controller/api/session.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <array>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http.hpp>
#include <ctime>

#include "base/failpoint.h"
#include "controller/api/encoding.h"

namespace gnomon {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;

constexpr size_t kHeaderMax = 16 << 10;
constexpr int kEmptyLinesMax = 16;  // before a request
constexpr size_t kFirstRead = 512;  // of a request; what an idle connection keeps
// Beyond this many bytes gzip takes longer than an I/O thread should (a fifth of a millisecond).
constexpr size_t kInlineMax = 16 << 10;

std::string_view view_of(beast::string_view text) { return {text.data(), text.size()}; }

const std::string* header_of(const Response& response, std::string_view name) {
  for (const auto& [each, value] : response.headers) {
    if (each == name) return &value;
  }
  return nullptr;
}

}  // namespace

struct Session::Incoming {
  http::request_parser<http::string_body> parser;
  bool body_read = false;
  std::string route_name = "unknown";
  bool timed = true;

  unsigned version() const { return parser.get().version(); }
  bool is_head() const { return parser.get().method() == http::verb::head; }
};

// Ends a read that takes too long, as the stream's own time would, but without closing the
// connection: the client still waits for its answer.
class Session::ReadTime {
 public:
  ReadTime(const std::shared_ptr<Session>& session, std::chrono::seconds time)
      : timer_(session->strand_, time), state_(std::make_shared<State>()) {
    session->stream_.expires_never();
    timer_.async_wait([session, state = state_](const boost::system::error_code& error) {
      if (error || state->read) return;
      state->over = true;
      boost::system::error_code ignored;
      session->stream_.socket().cancel(ignored);
    });
  }
  ReadTime(const ReadTime&) = delete;
  ReadTime& operator=(const ReadTime&) = delete;
  ~ReadTime() { state_->read = true; }  // the timer may have run out already
  bool over() const { return state_->over; }

 private:
  struct State {
    bool read = false;
    bool over = false;
  };
  asio::steady_timer timer_;
  std::shared_ptr<State> state_;
};

void Session::stop() {
  asio::post(strand_, [session = shared_from_this()] {
    if (session->idle_) {
      // As if the client had closed: what the coroutine has to say at the end it can still say.
      boost::system::error_code ignored;
      session->stream_.socket().shutdown(tcp::socket::shutdown_receive, ignored);
    }
  });
}

void Session::end() {
  asio::post(strand_, [session = shared_from_this()] {
    // Whatever the coroutine waits for at the socket ends with this.
    boost::system::error_code ignored;
    session->stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
  });
}

template <class Body>
static http::response<Body> head_of(const Response& response, unsigned version, bool keep_alive) {
  http::response<Body> out{static_cast<http::status>(response.status), version};
  if (!response.content_type.empty()) {
    out.set(http::field::content_type, response.content_type);
  }
  for (const auto& [name, value] : response.headers) {
    out.set(name, value);
  }
  out.set(http::field::date, http_date(static_cast<double>(std::time(nullptr))));
  out.keep_alive(keep_alive);
  return out;
}

void Session::answer(Response response, const Incoming& incoming, bool keep_alive) {
  failpoint::reached(failpoint::Point::kBeforeAnswer);
  stream_.expires_after(options_.read_timeout);
  const bool no_body = response.status == 204 || response.status == 304;
  if (no_body || incoming.is_head()) {
    auto out = head_of<http::empty_body>(response, incoming.version(), keep_alive);
    if (!no_body && !response.open_ended) out.content_length(response.body.size());
    http::response_serializer<http::empty_body> serializer(out);
    http::async_write_header(stream_, serializer, *yield_);
  } else {
    auto out = head_of<http::string_body>(response, incoming.version(), keep_alive);
    out.body() = std::move(response.body);
    out.prepare_payload();
    http::async_write(stream_, out, *yield_);
  }
  stream_.expires_never();
}

// The request at hand holds so many bytes now. Throws HttpError: 503 when all together, or those of
// its token, would hold too many.
void Session::hold(size_t bytes) {
  if (held_.resize(bytes)) return;
  services_.metrics.update([](DaemonNumbers& n) { n.transfers_refused += 1; });
  throw HttpError(503, "Too many bytes at once",
                  "the bodies and answers that are on their way hold too many bytes",
                  "the same request a little later; [limits] transfer_mib says how many there may "
                  "be, and one token has half of them");
}

// The answer's bytes in place of the body's. What has changed something is answered in any case.
void Session::hold_answer(const Request& request, const Response& response) {
  if (request.method == "GET") {
    hold(response.body.size());
  } else {
    [[maybe_unused]] const bool counted = held_.resize(response.body.size());
  }
}

// Reads the rest of the request, or throws the answer that the client gets.
void Session::read_body(Incoming& incoming, size_t body_max) {
  auto& parser = incoming.parser;
  auto too_large = [&](const std::string& size) {
    return HttpError(413, "Body too large", fmt::format("the body has {} bytes", size),
                     fmt::format("at most {} bytes on this path", body_max));
  };
  parser.body_limit(body_max);
  parser.eager(true);
  if (parser.content_length() && *parser.content_length() > body_max) {
    throw too_large(fmt::format("{}", *parser.content_length()));
  }
  if (lower(view_of(parser.get()[http::field::expect])) == "100-continue") {
    std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(stream_, asio::buffer(go_on), *yield_);
  }
  boost::system::error_code error;
  bool late = false;
  {
    const ReadTime time(shared_from_this(), options_.read_timeout);
    while (!parser.is_done() && !error) {
      http::async_read_some(stream_, buffer_, parser, (*yield_)[error]);
      hold(parser.get().body().size());
    }
    late = time.over();
  }
  if (error == http::error::buffer_overflow) {
    throw HttpError(431, "Header too large", "the fields behind a chunked body",
                    fmt::format("fewer than {} bytes of them", kBufferMax));
  }
  if (error == http::error::body_limit) {
    throw too_large("more than that many");
  }
  if (error && (late || error == http::error::partial_message)) {
    throw HttpError(408, "Request incomplete", "the body did not come in time",
                    fmt::format("the whole body within {} seconds", options_.read_timeout.count()));
  }
  if (error) {
    throw HttpError(400, "Malformed request", error.message(), "HTTP/1.1");
  }
  incoming.body_read = true;
}

// Throws HttpError: 415 for a body with a content coding.
std::string Session::body_of(Incoming& incoming) {
  const std::string coding = lower(view_of(incoming.parser.get()[http::field::content_encoding]));
  if (!coding.empty() && coding != "identity") {
    throw HttpError(415, "Unsupported content coding",
                    fmt::format("the body's Content-Encoding is \"{}\"", coding),
                    "no Content-Encoding");
  }
  return std::move(incoming.parser.get().body());
}

// Empty when the other end is gone.
std::string Session::peer_address() {
  boost::system::error_code gone;
  const auto peer = stream_.socket().remote_endpoint(gone);
  return gone ? std::string() : peer.address().to_string();
}

// Throws HttpError, for the request and whoever sends it. A connection on which a request is framed
// in a way that others may read otherwise ends with the answer.
Request Session::enter(const Incoming& incoming) {
  const auto& fields = incoming.parser.get();
  RequestHead head{static_cast<int>(fields.version()),
                   view_of(fields.method_string()),
                   view_of(fields.target()),
                   fields.count(http::field::host),
                   view_of(fields[http::field::host]),
                   view_of(fields[http::field::content_type]),
                   view_of(fields[http::field::transfer_encoding]),
                   view_of(fields["Last-Event-ID"])};
  last_ = true;
  Request request;
  try {
    request = request_of(head);
  } catch (const HttpError&) {
    services_.authenticator.admit_malformed(peer_address());
    throw;
  }
  last_ = false;
  const Caller caller = {.method = head.method,
                         .authorization = view_of(fields[http::field::authorization]),
                         .host = head.host,
                         .origin = view_of(fields[http::field::origin]),
                         .address = peer_address(),
                         .probe = request.path == "/livez"    ? Caller::Probe::kLive
                                  : request.path == "/readyz" ? Caller::Probe::kReady
                                                              : Caller::Probe::kNone,
                         .fetch_site = view_of(fields["Sec-Fetch-Site"]),
                         .referer = view_of(fields[http::field::referer])};
  request.foreign_page = foreign_page(caller);
  principal_ = services_.authenticator.admit(caller);
  assign_principal();
  return request;
}

// The connection is that of the request's principal from now on. Throws HttpError: 429 when he has
// as many as he may, and then the connection ends with the answer.
void Session::assign_principal() {
  const std::string holder = principal_ ? principal_->name() : std::string();
  const size_t most = services_.authenticator.connections_max();
  held_.set_holder(services_.authenticator.closed() ? holder : std::string());
  if (connections_.give(*this, holder, most)) return;
  last_ = true;
  services_.metrics.update([](DaemonNumbers& n) { n.connections_refused["token"] += 1; });
  throw HttpError(429, "Too many connections of this token",
                  fmt::format("the token \"{}\" has {} connections open", holder, most),
                  "fewer at once, a token for each job, or a larger [auth] connections")
      .retry_after(1);
}

Response Session::answered_by(const Route& route, Incoming& incoming, Request& request) {
  incoming.route_name = route.pattern;
  incoming.timed = route.timed;
  Authenticator::authorise(principal_, route.access);
  request.principal = principal_;
  if (request.parameters != nullptr) {
    check_query(*request.parameters, request);
  }
  read_body(incoming, route.body.max);
  if (!incoming.parser.get().body().empty()) {
    Router::check_content_type(route, request);
  }
  request.body = body_of(incoming);
  hold(request.body.size());
  stream_.expires_never();
  Response response = route.handler(*this, request);
  if (!response.streamed) {
    encode(incoming, response);
    hold_answer(request, response);
  }
  return response;
}

Response Session::handle(Incoming& incoming) {
  try {
    Request request = enter(incoming);
    return answered_by(router_.find(request), incoming, request);
  } catch (const boost::system::system_error&) {
    throw;  // the connection broke
  } catch (...) {
    Response response = response_for(std::current_exception());
    response.streamed = streaming_;  // too late for another answer
    return response;
  }
}

// What the client knows already is not sent again; what is large is sent as gzip where it may be.
void Session::encode(const Incoming& incoming, Response& response) {
  const auto& head = incoming.parser.get();
  const bool varies =
      response.body.size() >= kCompressFrom && is_compressible(response.content_type);
  if (varies) response.headers.emplace_back("Vary", "Accept-Encoding");
  const std::string* tag = header_of(response, "ETag");
  if (tag != nullptr && response.status == 200 &&
      matches_entity_tag(view_of(head[http::field::if_none_match]), *tag)) {
    response.status = 304;
    response.content_type.clear();
    response.body.clear();
  }
  if (!varies || response.status == 304 ||
      !accepts_gzip(view_of(head[http::field::accept_encoding]))) {
    return;
  }
  try {
    if (response.body.size() <= kInlineMax) {
      response.body = gzip(response.body);
    } else {
      on_reader([&] { response.body = gzip(response.body); });
    }
  } catch (const LedgerBusy&) {
    return;  // the readers have enough to do: it goes as it is
  }
  response.headers.emplace_back("Content-Encoding", "gzip");
}

void Session::answer_broken_header(boost::system::error_code error) {
  bool large = error == http::error::header_limit;
  Response response = problem_response(
      {"about:blank", large ? "Header too large" : "Malformed request", large ? 431 : 400,
       error.message(), large ? "at most 16384 bytes of header" : "HTTP/1.1"});
  try {
    services_.authenticator.admit_malformed(peer_address());
  } catch (const HttpError&) {
    response = response_for(std::current_exception());
  }
  answer_plainly(std::move(response));
  linger();
}

void Session::answer_slow_header() {
  answer_plainly(problem_response(
      {"about:blank", "Request incomplete", 408, "the header did not come in time",
       fmt::format("the whole header within {} seconds", options_.read_timeout.count())}));
  linger();
}

// To nothing that could be read.
void Session::answer_plainly(Response response) { answer(std::move(response), Incoming(), false); }

// Waits for the first bytes of a request, passing over empty lines: some clients end a body with a
// line break too many (RFC 9112, 2.2). False when the connection ends first.
bool Session::await_request() {
  for (int lines = 0; lines < kEmptyLinesMax;) {
    const std::string_view begin(static_cast<const char*>(buffer_.cdata().data()), buffer_.size());
    if (begin.starts_with("\r\n")) {
      buffer_.consume(2);
      ++lines;
      continue;
    }
    if (!begin.empty() && begin != "\r") return true;
    boost::system::error_code error;
    stream_.expires_after(options_.idle_timeout);
    buffer_.commit(stream_.async_read_some(buffer_.prepare(kFirstRead), (*yield_)[error]));
    if (error) return false;
  }
  return true;
}

// One request and its answer. False when the connection is over.
bool Session::serve_one() {
  Incoming incoming;
  auto& parser = incoming.parser;
  parser.header_limit(kHeaderMax);
  parser.body_limit(boost::none);
  boost::system::error_code error;
  idle_ = true;
  if (services_.stopping) return false;  // stop() may have come while the last answer was sent
  pauses_ = 0;
  principal_.reset();
  [[maybe_unused]] const bool always = held_.resize(0);
  if (!await_request()) return false;
  bool late = false;
  {
    const ReadTime time(shared_from_this(), options_.read_timeout);
    http::async_read_header(stream_, buffer_, parser, (*yield_)[error]);
    late = time.over();
  }
  idle_ = false;
  if (error == http::error::end_of_stream || services_.stopping) {
    return false;
  }
  if (error && late) {
    answer_slow_header();
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
  bool wants_more = parser.get().keep_alive();
  Response response = handle(incoming);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  services_.metrics.update([&](DaemonNumbers& n) {
    count_request(n, incoming.route_name, response.status, seconds, incoming.timed);
  });
  if (response.streamed) {
    return false;
  }
  if (response.status == 401) connections_.give(*this, "", 0);
  bool unread = !incoming.body_read && !parser.is_done();
  bool keep_alive = wants_more && !unread && !services_.stopping && !last_;
  answer(std::move(response), incoming, keep_alive);
  if (unread) {
    linger();
  }
  return keep_alive;
}

// After an answer to a request whose body was not read: closing at once would reset the connection
// before the client has read the answer.
void Session::linger() {
  boost::system::error_code error;
  stream_.end_writing(*yield_);
  stream_.expires_after(std::chrono::seconds(2));
  std::array<char, 16384> waste;
  size_t total = 0;
  while (!error && total < (size_t{64} << 20)) {
    total += stream_.async_read_some(asio::buffer(waste), (*yield_)[error]);
  }
}

void Session::refuse_connection() {
  answer_plainly(problem_response({"about:blank", "Too many connections", 503,
                                   fmt::format("{} connections are open", options_.connections_max),
                                   "the same request a little later"}));
  linger();
}

bool Session::shake_hands() {
  if (!stream_.is_secure()) return true;
  stream_.expires_after(options_.read_timeout);
  boost::system::error_code error;
  stream_.async_handshake((*yield_)[error]);
  if (!error) return true;
  stream_.drop_tls();
  if (services_.stopping) return false;
  services_.metrics.update([](DaemonNumbers& n) { n.tls_handshake_failures += 1; });
  spdlog::debug("a TLS handshake failed: {}", error.message());
  if (WireStream::is_plain_http(error)) {
    // No problem document: a trainer would take that for a refusal of what it reports.
    answer_plainly(
        {400, "text/plain", "This port speaks TLS: use https:// instead of http://.\n", {}, false});
  }
  // So that the client reads what was wrong, which a reset could take from it.
  if (error.category() == asio::error::get_ssl_category()) linger();
  return false;
}

void Session::run(asio::yield_context yield, bool refuse) {
  yield_ = &yield;
  try {
    if (!shake_hands()) {
      // Said already what there is to say.
    } else if (refuse) {
      refuse_connection();
    } else {
      while (serve_one()) {
      }
      stream_.end_writing(*yield_);
    }
  } catch (const boost::system::system_error& error) {
    spdlog::debug("a connection broke: {}", error.what());
  } catch (const std::exception& error) {  // no memory for an answer, say: this client comes again
    spdlog::error("a connection was closed over an error: {}", error.what());
  }
  boost::system::error_code ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
  stream_.close();
}

}  // namespace gnomon
