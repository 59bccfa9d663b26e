// A server's connection of HTTP, plain or in TLS, as a stream of Asio and Beast: what is written
// against it is compiled once for both. It may be used by one coroutine or strand at a time, with
// at most one read and one write under way.
#pragma once

#include <array>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/spawn.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <chrono>
#include <memory>
#include <utility>

#include "protocol/tls_context.h"

namespace gnomon {

class WireStream {
 public:
  using executor_type = boost::beast::tcp_stream::executor_type;
  using error_code = boost::system::error_code;

  // Without `tls` the connection is plain. Throws std::bad_alloc.
  explicit WireStream(boost::asio::ip::tcp::socket socket, const TlsContext& tls = nullptr);
  ~WireStream();
  WireStream(const WireStream&) = delete;
  WireStream& operator=(const WireStream&) = delete;

  executor_type get_executor() { return tcp_.get_executor(); }
  boost::asio::ip::tcp::socket& socket() { return tcp_.socket(); }
  bool is_secure() const { return tls_ != nullptr; }

  // As in beast::tcp_stream: for all that is begun from now on, together.
  void expires_after(std::chrono::nanoseconds time) { tcp_.expires_after(time); }
  void expires_never() { tcp_.expires_never(); }
  // Ends what is under way. The other end sees the connection end without a word.
  void close() { tcp_.close(); }

  // Does the handshake of TLS, before anything is read or written. void(error_code).
  template <class Token>
  auto async_handshake(Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code)>(
        [this](auto handler) { start_handshake(Done<>(std::move(handler), get_executor())); },
        token);
  }
  // Tells the other end that nothing more comes (close_notify) and does not wait for its answer.
  // Only behind a handshake that succeeded. void(error_code).
  template <class Token>
  auto async_close_notify(Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code)>(
        [this](auto handler) { start_close_notify(Done<>(std::move(handler), get_executor())); },
        token);
  }
  // Says that nothing more comes, in TLS as well; takes two seconds at most.
  void end_writing(boost::asio::yield_context yield);
  // True when a handshake failed because the other end spoke HTTP without TLS.
  static bool is_plain_http(const error_code& error);
  // From now on bytes go as they are. Nothing may be under way.
  void drop_tls();

  template <class Buffers, class Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code, size_t)>(
        [this](auto handler, boost::asio::mutable_buffer buffer) {
          start_read(buffer, Done<size_t>(std::move(handler), get_executor()));
        },
        token, first_of(buffers));
  }
  template <class Buffers, class Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code, size_t)>(
        [this](auto handler, const Parts& parts) {
          start_write(parts, Done<size_t>(std::move(handler), get_executor()));
        },
        token, Parts(buffers));
  }

 private:
  struct Tls;

  // The first buffers of a sequence, at most eight that are not empty: an HTTP message has no more.
  class Parts {
   public:
    template <class Buffers>
    explicit Parts(const Buffers& buffers) {
      const auto end = boost::asio::buffer_sequence_end(buffers);
      for (auto at = boost::asio::buffer_sequence_begin(buffers); at != end; ++at) {
        const boost::asio::const_buffer part(*at);
        if (part.size() == 0) continue;
        if (count_ == parts_.size()) return;
        parts_[count_++] = part;
      }
    }
    using value_type = boost::asio::const_buffer;
    using const_iterator = const boost::asio::const_buffer*;
    const_iterator begin() const { return parts_.data(); }
    const_iterator end() const { return parts_.data() + count_; }
    size_t count() const { return count_; }

   private:
    std::array<boost::asio::const_buffer, 8> parts_{};
    size_t count_ = 0;
  };

  template <class Buffers>
  static boost::asio::mutable_buffer first_of(const Buffers& buffers) {
    const auto end = boost::asio::buffer_sequence_end(buffers);
    for (auto at = boost::asio::buffer_sequence_begin(buffers); at != end; ++at) {
      const boost::asio::mutable_buffer part(*at);
      if (part.size() > 0) return part;
    }
    return {};
  }

  // Who waits for an operation, whatever its type: runs where its executor wants it to.
  template <class... Results>
  class Done {
   public:
    template <class Handler>
    Done(Handler handler, const executor_type& fallback)
        : waiting_(std::make_unique<Of<Handler>>(std::move(handler), fallback)) {}
    void operator()(error_code error, Results... results) {
      const std::unique_ptr<Waiting> waiting = std::move(waiting_);
      waiting->call(error, results...);
    }

   private:
    struct Waiting {
      virtual ~Waiting() = default;
      virtual void call(error_code error, Results... results) = 0;
    };
    template <class Handler>
    struct Of final : Waiting {
      Of(Handler handler_in, const executor_type& fallback_in)
          : handler(std::move(handler_in)), fallback(fallback_in) {}
      void call(error_code error, Results... results) override {
        auto executor = boost::asio::get_associated_executor(handler, fallback);
        boost::asio::dispatch(executor, [own = std::move(handler), error, results...]() mutable {
          std::move(own)(error, results...);
        });
      }
      Handler handler;
      executor_type fallback;
    };
    std::unique_ptr<Waiting> waiting_;
  };

  void start_read(boost::asio::mutable_buffer buffer, Done<size_t> done);
  void start_write(const Parts& parts, Done<size_t> done);
  void start_handshake(Done<> done);
  void start_close_notify(Done<> done);

  boost::beast::tcp_stream tcp_;
  std::unique_ptr<Tls> tls_;
};

}  // namespace gnomon
