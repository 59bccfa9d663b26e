#include "tests/protocol/http_test_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

#include "base/errors.h"

namespace gnomon::test {

namespace http = boost::beast::http;
namespace ssl = boost::asio::ssl;
using boost::asio::ip::tcp;
using boost::system::error_code;

struct HttpTestServer::Connection {
  explicit Connection(int descriptor) : fd(descriptor) {}
  int fd;
  std::thread thread;
};

HttpTestServer::HttpTestServer(Handler handler, HttpTestTls tls)
    : handler_(std::move(handler)), tls_(std::move(tls)) {
  start();
}

HttpTestServer::~HttpTestServer() { stop(); }

std::string HttpTestServer::url() const {
  return (tls_.certificate.empty() ? "http" : "https") + ("://127.0.0.1:" + std::to_string(port_));
}

void HttpTestServer::start() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port_));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  GNOMON_ASSERT(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  GNOMON_ASSERT(::listen(listener, 64) == 0);
  socklen_t size = sizeof(address);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  stopping_ = false;
  listener_ = listener;
  accept_thread_ = std::thread([this, listener] { accept_loop(listener); });
}

void HttpTestServer::stop() {
  if (!accept_thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    ::shutdown(listener_, SHUT_RDWR);
  }
  changed_.notify_all();
  accept_thread_.join();
  std::vector<std::shared_ptr<Connection>> open;
  {
    std::lock_guard lock(mutex_);
    open.swap(open_);
  }
  for (const auto& connection : open) ::shutdown(connection->fd, SHUT_RDWR);
  for (const auto& connection : open) {
    connection->thread.join();
    ::close(connection->fd);
  }
  ::close(listener_);
}

void HttpTestServer::accept_loop(int listener) {
  while (true) {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    std::lock_guard lock(mutex_);
    if (stopping_) {
      ::close(fd);
      return;
    }
    ++connections_;
    auto connection = std::make_shared<Connection>(fd);
    connection->thread = std::thread([this, connection] { serve(connection); });
    open_.push_back(std::move(connection));
  }
}

template <typename Stream>
void HttpTestServer::answer_all(Stream& stream) {
  boost::beast::flat_buffer buffer;
  error_code ec;
  while (true) {
    http::request_parser<http::string_body> parser;
    parser.body_limit(64u << 20);
    http::read(stream, buffer, parser, ec);
    if (ec) break;
    const auto& message = parser.get();
    HttpRequest request{std::string(message.method_string()), std::string(message.target()),
                        message.body()};
    for (const auto& field : message) {
      std::string name(field.name_string());
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      request.headers[name] = std::string(field.value());
    }
    const HttpReply reply = handler_(request);
    if (reply.close_unanswered || stopping_) break;
    http::response<http::string_body> response;
    response.version(11);
    response.result(static_cast<unsigned>(reply.status));
    response.set(http::field::content_type, "application/json");
    for (const auto& [name, value] : reply.headers) response.set(name, value);
    response.body() = reply.body;
    response.keep_alive(true);
    reply.chunked ? response.chunked(true) : response.prepare_payload();
    http::write(stream, response, ec);
    if (ec || reply.close_after) break;
  }
}

void HttpTestServer::serve(const std::shared_ptr<Connection>& connection) {
  boost::asio::io_context context;
  tcp::socket socket(context, tcp::v4(), ::dup(connection->fd));
  if (tls_.certificate.empty()) {
    answer_all(socket);
  } else {
    ssl::context files(ssl::context::tls_server);
    files.use_certificate_chain_file(tls_.certificate);
    files.use_private_key_file(tls_.key, ssl::context::pem);
    ssl::stream<tcp::socket&> stream(socket, files);
    error_code refused;
    stream.handshake(ssl::stream_base::server, refused);
    if (!refused) answer_all(stream);
  }
  ::shutdown(connection->fd, SHUT_RDWR);
}

void HttpTestServer::hold() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return released_ || stopping_; });
}

void HttpTestServer::release() {
  {
    std::lock_guard lock(mutex_);
    released_ = true;
  }
  changed_.notify_all();
}

}  // namespace gnomon::test
