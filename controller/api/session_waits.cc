// How a session waits without a thread: for the ledger, for a notification, for its client to hang
// up.
#include <fmt/format.h>
#include <poll.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/serializer.hpp>
#include <boost/beast/http/write.hpp>
#include <ctime>

#include "controller/api/session.h"
#include "storage/ledger_audit.h"

namespace gnomon {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;

// Interval of checks on a client that sent more than its request: its end cannot be watched for.
constexpr auto kHangUpCheck = std::chrono::seconds(2);
constexpr auto kPauseFirst = std::chrono::milliseconds(5);
constexpr int kPausesMax = 5;  // doublings

}  // namespace

// What a coroutine sleeps on until another thread or its socket wakes it. Belongs to the
// coroutine's strand.
struct Session::Signal {
  explicit Signal(const Strand& strand_in) : strand(strand_in), timer(strand_in) {}
  Strand strand;
  asio::steady_timer timer;
  bool set = false;
  bool readable = false;  // the socket has something: bytes or its end
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

void Session::sleep(Signal& signal) {
  while (!signal.set) {
    signal.timer.expires_at(Clock::time_point::max());
    boost::system::error_code ignored;
    signal.timer.async_wait((*yield_)[ignored]);
  }
}

void Session::write(Ledger::Write write) {
  auto signal = std::make_shared<Signal>(strand_);
  Ledger::Write named = [write = std::move(write),
                         principal = principal_](LedgerTransaction& transaction) {
    const ledger::AuditedBy by(transaction.connection(),
                               principal ? principal->name() : "stranger");
    write(transaction);
  };
  if (!services_.ledger.post(std::move(named),
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

// Long work on bytes, on a thread of the ledger's readers: no I/O thread waits for it.
void Session::on_reader(const std::function<void()>& work) {
  read([&work](Connection&) { work(); });
}

// Wakes the coroutine when the socket has something to read, which may be its end. Costs nothing
// until then.
void Session::watch(const std::shared_ptr<Signal>& signal) {
  stream_.socket().async_wait(tcp::socket::wait_read,
                              [signal](const boost::system::error_code& error) {
                                if (!error) {
                                  signal->readable = true;
                                  signal->timer.cancel();
                                }
                              });
}

bool Session::wait(const Awaited& awaited, Clock::time_point deadline) {
  auto signal = std::make_shared<Signal>(strand_);
  const uint64_t ticket = awaited.wait([signal] { fire(signal, nullptr); });
  if (ticket == 0) {
    return !over();
  }
  watch(signal);
  waiting_ = signal;
  bool watched = true;
  while (!signal->set && !services_.stopping && !token_is_over() && Clock::now() < deadline) {
    if (signal->readable || !watched) {
      if (hung_up()) break;
      signal->readable = watched = false;  // it has sent its next request already
    }
    signal->timer.expires_at(watched ? deadline : std::min(deadline, Clock::now() + kHangUpCheck));
    boost::system::error_code ignored;
    signal->timer.async_wait((*yield_)[ignored]);
  }
  awaited.forget(ticket);
  boost::system::error_code ignored;
  stream_.socket().cancel(ignored);
  return signal->set && !services_.stopping && !token_is_over();
}

void Session::look_at_token() {
  asio::post(strand_, [session = shared_from_this()] {
    const std::shared_ptr<Signal> signal = session->waiting_.lock();
    if (signal && session->token_is_over()) signal->timer.cancel();
  });
}

// The client has hung up, its token was revoked or is over, or the daemon is stopping.
bool Session::over() { return services_.stopping || hung_up() || token_is_over(); }

bool Session::token_is_over() const {
  return principal_ && !services_.authenticator.valid(*principal_);
}

bool Session::pause() {
  // Sessions that were woken together do not come back together.
  const auto base = kPauseFirst * (1 << std::min(pauses_++, kPausesMax));
  const auto own = std::chrono::milliseconds(reinterpret_cast<uintptr_t>(this) / 64 % 37);
  asio::steady_timer timer(strand_, base + own);
  boost::system::error_code ignored;
  timer.async_wait((*yield_)[ignored]);
  return !over();
}

// The client has closed its side. Bytes of a next request do not hide that.
bool Session::hung_up() {
  pollfd socket{stream_.socket().native_handle(), POLLRDHUP, 0};
  return ::poll(&socket, 1, 0) > 0;
}

void Session::start_stream(const std::string& content_type) {
  streaming_ = true;
  http::response<http::empty_body> head{http::status::ok, 11};
  head.set(http::field::content_type, content_type);
  head.set(http::field::cache_control, "no-cache");
  head.set(http::field::date, http_date(static_cast<double>(std::time(nullptr))));
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

}  // namespace gnomon
