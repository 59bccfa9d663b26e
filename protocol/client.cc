#include "protocol/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <optional>

#include "base/version.h"
#include "net/wire_stream.h"
#include "protocol/json.h"
#include "protocol/tls_problems.h"
#include "protocol/url.h"

namespace gnomon {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kHeaderBytesMax = 64u << 10;

// In words; `title` becomes the problem document's, or stays empty.
std::string describe(const HttpResponse& response, std::string& title) {
  constexpr size_t kShownMax = 300;
  try {
    const auto problem = from_json<Problem>(response.body);
    title = problem.title;
    std::string text = problem.title;
    if (!problem.detail.empty()) text += (text.empty() ? "" : ": ") + problem.detail;
    if (!problem.accepted.empty()) text += fmt::format(" (accepted: {})", problem.accepted);
    if (!text.empty()) return text;
  } catch (const JsonError&) {
    // Not a problem document: something else than gnomond answered, so its own words are the best
    // there is.
  }
  return response.body.substr(0, kShownMax);
}

// The target in `<target>; rel="next"`, which is all that gnomond says in a Link header.
std::string next_of(std::string_view link) {
  const size_t end = link.find(">; rel=\"next\"");
  return link.starts_with('<') && end != std::string_view::npos
             ? std::string(link.substr(1, end - 1))
             : std::string();
}

// In seconds; a date, which gnomond never says, counts as nothing.
int seconds_of(std::string_view retry_after) {
  int seconds = 0;
  const char* end = retry_after.data() + retry_after.size();
  const auto [stop, error] = std::from_chars(retry_after.data(), end, seconds);
  return error == std::errc() && stop == end ? std::max(seconds, 0) : 0;
}

// Checks everything that is named. Throws ConfigError.
Url checked_url(const ClientOptions& options) {
  Url url = parse_url(options.url);
  if (!read_token(options).empty() && !url.secure && !url.is_loopback()) {
    throw ConfigError("", 0, "controller", "\"" + options.url + "\"",
                      "an https:// URL: a token is not sent in the clear to another machine");
  }
  if (options.certificate_file.empty() != options.key_file.empty()) {
    const bool no_key = options.key_file.empty();
    throw ConfigError("", 0, no_key ? "key_file" : "certificate_file", "",
                      no_key ? "the key of certificate_file" : "the certificate of key_file");
  }
  return url;
}

TlsContext tls_of(const ClientOptions& options) {
  try {
    return make_client_tls({options.certificate_file, options.key_file, options.ca_file});
  } catch (const TlsFileError& error) {
    using Which = TlsFileError::Which;
    const char* key = error.which() == Which::kCa    ? "ca_file"
                      : error.which() == Which::kKey ? "key_file"
                                                     : "certificate_file";
    throw ConfigError("", 0, key, error.file(),
                      fmt::format("{} ({})", error.accepted(), error.wrong()));
  }
}

// One step of a request failed.
struct Broken {
  const char* action;
  error_code ec;
  std::string words = {};  // in place of the error's own
};

}  // namespace

struct HttpClient::Impl {
  explicit Impl(ClientOptions given) : options(std::move(given)), url(checked_url(options)) {
    if (url.secure) tls_of(options);
  }

  // Runs one asynchronous operation until it is done, the deadline has passed or cancel() was
  // called.
  template <typename Start>
  void run(const char* action, Clock::time_point deadline, Start start) {
    std::optional<error_code> result;
    start([&result](error_code ec, const auto&...) { result = ec; });
    context.restart();
    while (!result) {
      if (context.run_one_until(deadline) > 0) continue;
      close();
      context.restart();
      while (!result) context.run_one();
      result = asio::error::timed_out;
    }
    if (cancelled) result = asio::error::operation_aborted;
    if (*result) throw Broken{action, *result, stream ? explain(problem(*result)) : std::string()};
  }

  TlsProblem problem(error_code ec) const {
    return {ec, stream->verify_error(), stream->peer_names(), url.host};
  }

  void close() {
    resolver.cancel();
    if (stream) stream->close();
    buffer.clear();
  }

  bool is_open() { return stream && stream->socket().is_open(); }

  // What the files say now: tokens and certificates are replaced while a run goes on.
  void read_files() {
    TlsContext tls;
    try {
      token = read_token(options);
      if (url.secure) tls = tls_of(options);
    } catch (const ConfigError& error) {
      throw Broken{"connect to", {}, error.what()};
    }
    stream.emplace(tcp::socket(context), tls);
  }

  void connect(Clock::time_point deadline) {
    read_files();
    tcp::resolver::results_type endpoints;
    run("resolve", deadline, [&](auto done) {
      resolver.async_resolve(url.host, url.port,
                             [&endpoints, done](error_code ec, auto found) mutable {
                               endpoints = std::move(found);
                               done(ec);
                             });
    });
    run("connect to", deadline,
        [&](auto done) { asio::async_connect(stream->socket(), endpoints, done); });
    stream->socket().set_option(tcp::no_delay(true));
    if (!url.secure) return;
    stream->expect(url.host);
    run("speak TLS with", deadline,
        [&](auto done) { stream->async_handshake(WireStream::Role::kClient, done); });
  }

  HttpResponse exchange(http::request<http::string_body>& message, Clock::time_point deadline,
                        bool& any_answer) {
    if (!token.empty()) message.set(http::field::authorization, "Bearer " + token);
    run("write to", deadline, [&](auto done) { http::async_write(*stream, message, done); });
    http::response_parser<http::string_body> parser;
    parser.body_limit(options.answer_bytes_max);
    parser.header_limit(kHeaderBytesMax);
    buffer.clear();
    try {
      run("read from", deadline,
          [&](auto done) { http::async_read(*stream, buffer, parser, done); });
    } catch (const Broken& broken) {
      any_answer = parser.got_some();
      if (broken.ec != http::error::body_limit) throw;
      throw Broken{broken.action, broken.ec,
                   fmt::format("an answer of more than {} bytes", options.answer_bytes_max)};
    }
    const auto link = parser.get()[http::field::link];
    const auto pause = parser.get()[http::field::retry_after];
    HttpResponse response{static_cast<int>(parser.get().result_int()),
                          std::move(parser.get().body()), next_of({link.data(), link.size()}),
                          seconds_of({pause.data(), pause.size()})};
    const bool new_token = response.status == 401 || response.status == 403;
    if (!parser.get().keep_alive() || new_token) close();
    return response;
  }

  HttpResponse request(http::request<http::string_body>& message,
                       std::chrono::milliseconds timeout) {
    const Clock::time_point deadline = Clock::now() + timeout;
    context.restart();
    context.poll();  // a cancel() since the last request
    try {
      if (cancelled) throw Broken{"ask", asio::error::operation_aborted};
      for (bool reused = is_open();; reused = false) {
        bool any_answer = false;
        try {
          if (!reused) connect(deadline);
          return exchange(message, deadline, any_answer);
        } catch (const Broken& broken) {
          close();
          const bool peer_closed =
              broken.ec != asio::error::timed_out && broken.ec != asio::error::operation_aborted;
          if (!reused || any_answer || !peer_closed) throw;
        }
      }
    } catch (const Broken& broken) {
      const bool was_cancelled = cancelled.exchange(false);
      throw ConnectionError(fmt::format("cannot {} the controller at {} ({} {}): {}", broken.action,
                                        options.url, std::string(message.method_string()),
                                        std::string(message.target()),
                                        was_cancelled           ? "cancelled"
                                        : !broken.words.empty() ? broken.words
                                                                : broken.ec.message()));
    }
  }

  ClientOptions options;
  Url url;
  std::string token;  // of the connection there is
  asio::io_context context{1};
  tcp::resolver resolver{context};
  std::optional<WireStream> stream;
  boost::beast::flat_buffer buffer;
  std::atomic<bool> cancelled{false};
};

bool may_pass(int status) {
  switch (status) {
    case 401:
    case 403:
    case 408:
    case 429:
    case 502:
    case 503:
    case 504:
    case 507:
      return true;
    default:
      return false;
  }
}

std::chrono::milliseconds asked_pause(const std::exception& error) {
  constexpr int kLongest = 60;
  const auto* answer = dynamic_cast<const ApiError*>(&error);
  return std::chrono::seconds(answer == nullptr ? 0 : std::min(answer->retry_after(), kLongest));
}

HttpClient::HttpClient(ClientOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
HttpClient::HttpClient(const std::string& url) : HttpClient(ClientOptions{.url = url}) {}
HttpClient::~HttpClient() = default;

HttpResponse HttpClient::request(const std::string& method, const std::string& target,
                                 const std::string& body, std::chrono::milliseconds timeout) {
  http::request<http::string_body> message;
  message.version(11);
  message.method_string(method);
  message.target(target);
  message.set(http::field::host, impl_->url.host_header);
  message.set(http::field::user_agent, fmt::format("gnomon/{}", kVersion));
  if (!body.empty()) message.set(http::field::content_type, "application/json");
  message.body() = body;
  message.keep_alive(true);
  message.prepare_payload();
  return impl_->request(message, timeout);
}

HttpResponse HttpClient::checked(const std::string& method, const std::string& target,
                                 const std::string& body, std::chrono::milliseconds timeout) {
  HttpResponse response = request(method, target, body, timeout);
  if (response.status >= 400) {
    std::string title;
    std::string words = describe(response, title);
    if (response.status == 401 || response.status == 403) {
      words +=
          "; a token is named by token_file of [controller], --token-file, GNOMON_TOKEN_FILE, "
          "or is GNOMON_TOKEN";
    }
    throw ApiError(response.status,
                   fmt::format("{} {}: {} {}", method, target, response.status, words), title,
                   response.retry_after);
  }
  return response;
}

void HttpClient::cancel() {
  impl_->cancelled = true;
  asio::post(impl_->context, [impl = impl_.get()] { impl->close(); });
}

}  // namespace gnomon
