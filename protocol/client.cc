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
#include <optional>

#include "base/version.h"
#include "protocol/json.h"

namespace gnomon {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kBodyBytesMax = 256ull << 20;
constexpr uint32_t kHeaderBytesMax = 64u << 10;

struct Url {
  std::string host;
  std::string port = "80";
  std::string host_header;
};

[[noreturn]] void refuse_url(const std::string& url) {
  throw ConfigError("", 0, "controller", "\"" + url + "\"", "a URL like \"http://127.0.0.1:7717\"");
}

Url parse_url(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  if (url.rfind(kScheme, 0) != 0) refuse_url(url);
  std::string rest = url.substr(kScheme.size());
  if (!rest.empty() && rest.back() == '/') rest.pop_back();
  Url result;
  result.host_header = rest;
  size_t colon = rest.rfind(':');
  if (!rest.empty() && rest[0] == '[') {
    const size_t close = rest.find(']');
    if (close == std::string::npos) refuse_url(url);
    result.host = rest.substr(1, close - 1);
    colon = close + 1 < rest.size() ? close + 1 : std::string::npos;
    if (colon != std::string::npos && rest[colon] != ':') refuse_url(url);
  } else {
    result.host = rest.substr(0, colon);
  }
  if (colon != std::string::npos) result.port = rest.substr(colon + 1);
  const bool digits = !result.port.empty() && result.port.size() <= 5 &&
                      std::all_of(result.port.begin(), result.port.end(),
                                  [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || std::stoi(result.port) < 1 || std::stoi(result.port) > 65535) refuse_url(url);
  if (result.host.empty() || result.host.find_first_of("/?#@ ") != std::string::npos)
    refuse_url(url);
  return result;
}

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

// One step of a request failed.
struct Broken {
  const char* action;
  error_code ec;
};

}  // namespace

struct HttpClient::Impl {
  explicit Impl(const std::string& text) : url(parse_url(text)), name(text) {}

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
    if (*result) throw Broken{action, *result};
  }

  void close() {
    error_code ignored;
    resolver.cancel();
    socket.close(ignored);
    buffer.clear();
  }

  void connect(Clock::time_point deadline) {
    tcp::resolver::results_type endpoints;
    run("resolve", deadline, [&](auto done) {
      resolver.async_resolve(url.host, url.port,
                             [&endpoints, done](error_code ec, auto found) mutable {
                               endpoints = std::move(found);
                               done(ec);
                             });
    });
    run("connect to", deadline, [&](auto done) { asio::async_connect(socket, endpoints, done); });
    socket.set_option(tcp::no_delay(true));
  }

  HttpResponse exchange(const http::request<http::string_body>& message, Clock::time_point deadline,
                        bool& any_answer) {
    run("write to", deadline, [&](auto done) { http::async_write(socket, message, done); });
    http::response_parser<http::string_body> parser;
    parser.body_limit(kBodyBytesMax);
    parser.header_limit(kHeaderBytesMax);
    buffer.clear();
    try {
      run("read from", deadline,
          [&](auto done) { http::async_read(socket, buffer, parser, done); });
    } catch (const Broken&) {
      any_answer = parser.got_some();
      throw;
    }
    const auto link = parser.get()[http::field::link];
    HttpResponse response{static_cast<int>(parser.get().result_int()),
                          std::move(parser.get().body()), next_of({link.data(), link.size()})};
    if (!parser.get().keep_alive()) close();
    return response;
  }

  HttpResponse request(const http::request<http::string_body>& message,
                       std::chrono::milliseconds timeout) {
    const Clock::time_point deadline = Clock::now() + timeout;
    context.restart();
    context.poll();  // a cancel() since the last request
    try {
      if (cancelled) throw Broken{"ask", asio::error::operation_aborted};
      for (bool reused = socket.is_open();; reused = false) {
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
                                        name, std::string(message.method_string()),
                                        std::string(message.target()),
                                        was_cancelled ? "cancelled" : broken.ec.message()));
    }
  }

  Url url;
  std::string name;
  asio::io_context context{1};
  tcp::resolver resolver{context};
  tcp::socket socket{context};
  boost::beast::flat_buffer buffer;
  std::atomic<bool> cancelled{false};
};

HttpClient::HttpClient(const std::string& url) : impl_(std::make_unique<Impl>(url)) {}
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
    const std::string words = describe(response, title);
    throw ApiError(response.status,
                   fmt::format("{} {}: {} {}", method, target, response.status, words), title);
  }
  return response;
}

void HttpClient::cancel() {
  impl_->cancelled = true;
  asio::post(impl_->context, [impl = impl_.get()] { impl->close(); });
}

}  // namespace gnomon
