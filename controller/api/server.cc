#include "controller/api/server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <thread>

#include "base/thread_name.h"
#include "controller/api/byte_budget.h"
#include "controller/api/client_connections.h"
#include "controller/api/guarded_run.h"
#include "controller/api/session.h"

namespace gnomon {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr size_t kStackBytes = 256 << 10;  // of a coroutine; only what it touches is memory
constexpr int kWakenAtOnce = 256;
constexpr std::chrono::seconds kLogFullEvery{10};
constexpr std::chrono::milliseconds kBreath{5};  // where memory ran out: not at once again

// What ends a coroutine is logged by guarded_run().
void rethrow(std::exception_ptr error) {
  if (error) {
    std::rethrow_exception(error);
  }
}

// A connection's place is free again however its coroutine ended.
struct Leaving {
  ClientConnections& connections;
  const Session& session;
  ~Leaving() { connections.leave(session); }
};

struct Timer {
  asio::steady_timer timer;
  std::chrono::milliseconds interval;
  std::function<void()> action;
};

}  // namespace

struct Server::Impl {
  explicit Impl(ServerOptions options_in)
      : options(std::move(options_in)),
        connections(options.connections_max),
        bytes(options.transfer_max),
        context(options.threads),
        accept_strand(asio::make_strand(context)),
        acceptor(accept_strand),
        drain_timer(accept_strand),
        stop_timer(accept_strand) {}

  void listen();
  void accept_loop(asio::yield_context yield, Services& services, const Router& router);
  void accept_one(asio::yield_context yield, Services& services, const Router& router);
  void serve(tcp::socket socket, const Strand& strand, Services& services, const Router& router);
  void repeat(Timer& timer, asio::yield_context yield, const Services& services);
  void begin_drain(Services& services);
  void begin_stop(Services& services);
  void forget(const Session& session, const Services& services);
  void log_full(const char* what);
  void dispatch(std::shared_ptr<ChangeNotifier::Waiting> waiting);

  ServerOptions options;
  ClientConnections connections;
  ByteBudget bytes;
  asio::io_context context;
  Strand accept_strand;
  tcp::acceptor acceptor;
  Services* served = nullptr;  // what run() was given
  std::function<void()> stop_action;
  asio::steady_timer drain_timer;
  asio::steady_timer stop_timer;
  std::vector<std::unique_ptr<Timer>> timers;
  Session::Clock::time_point logged_full_at;  // of the accept loop
  int64_t unlogged_full = 0;
};

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

void Server::Impl::accept_loop(asio::yield_context yield, Services& services,
                               const Router& router) {
  while (!services.stopping) {
    try {
      accept_one(yield, services, router);
    } catch (const std::exception& failure) {
      // No memory, or no mapping, for another stack: this client comes again, the others stay.
      spdlog::warn("a connection was closed, since there is nothing to serve it with: {}",
                   failure.what());
      std::this_thread::sleep_for(kBreath);
    }
  }
}

void Server::Impl::accept_one(asio::yield_context yield, Services& services, const Router& router) {
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
    return;
  }
  socket.set_option(tcp::no_delay(true), error);
  serve(std::move(socket), strand, services, router);
}

void Server::Impl::serve(tcp::socket socket, const Strand& strand, Services& services,
                         const Router& router) {
  auto session = std::make_shared<Session>(options, services, router, connections, bytes,
                                           std::move(socket), strand);
  const ClientConnections::Entry entry = connections.enter(session);
  if (entry == ClientConnections::Entry::kForAnother) {
    services.metrics.update([](DaemonNumbers& n) { n.connections_evicted += 1; });
    log_full("those without a known token make room");
  } else if (entry != ClientConnections::Entry::kWelcome) {
    services.metrics.update([](DaemonNumbers& n) { n.connections_refused["full"] += 1; });
    log_full("newcomers are refused");
    if (entry == ClientConnections::Entry::kNoPlace) return;
  }
  const bool refuse = entry == ClientConnections::Entry::kFull;
  try {
    asio::spawn(
        strand, std::allocator_arg, boost::context::protected_fixedsize_stack(kStackBytes),
        [this, session, refuse, &services](asio::yield_context yield) {
          const Leaving leaving{connections, *session};
          session->run(yield, refuse);
          forget(*session, services);
        },
        rethrow);
  } catch (const std::bad_alloc&) {
    forget(*session, services);
    throw;
  }
}

void Server::Impl::repeat(Timer& timer, asio::yield_context yield, const Services& services) {
  while (!services.stopping) {
    timer.timer.expires_after(timer.interval);
    boost::system::error_code ignored;
    timer.timer.async_wait(yield[ignored]);
    if (services.stopping) return;
    try {
      timer.action();
    } catch (const std::exception& error) {  // its next time comes
      spdlog::error("what is done every {} ms was not: {}", timer.interval.count(), error.what());
    }
  }
}

// Who balances load or asks for work goes elsewhere, and who has something to hand in still can.
void Server::Impl::begin_drain(Services& services) {
  services.draining = true;
  if (stop_action) {
    stop_action();
  }
  services.queue.wake_all();
  if (options.drain_timeout.count() == 0) {
    begin_stop(services);
    return;
  }
  spdlog::info("draining for {} seconds: no new leases, everything else is answered",
               options.drain_timeout.count());
  drain_timer.expires_after(options.drain_timeout);
  drain_timer.async_wait([this, &services](const boost::system::error_code& error) {
    if (!error) {
      begin_stop(services);
    }
  });
}

void Server::Impl::begin_stop(Services& services) {
  if (services.stopping.exchange(true)) {
    return;
  }
  spdlog::info("stopping: requests in flight are answered, new ones are not taken");
  drain_timer.cancel();
  boost::system::error_code ignored;
  acceptor.close(ignored);
  for (auto& timer : timers) {
    timer->timer.cancel();
  }
  services.queue.wake_all();
  services.notifiers.notify_all();
  for (const auto& connection : connections.all()) connection->stop();
  if (connections.counts().open == 0) return;
  stop_timer.expires_after(options.stop_timeout);
  stop_timer.async_wait([this](const boost::system::error_code& error) {
    if (!error) {
      spdlog::warn("some requests did not end in time and are dropped");
      context.stop();
    }
  });
}

void Server::Impl::forget(const Session& session, const Services& services) {
  connections.leave(session);
  if (services.stopping && connections.counts().open == 0) {
    asio::post(accept_strand, [this] { stop_timer.cancel(); });
  }
}

// Said at most once in ten seconds: a flood must not fill the log.
void Server::Impl::log_full(const char* what) {
  ++unlogged_full;
  const auto now = Session::Clock::now();
  if (now - logged_full_at < kLogFullEvery) return;
  spdlog::warn("all {} connections are taken: {} ({} since the last such line)",
               options.connections_max, what, unlogged_full);
  logged_full_at = now;
  unlogged_full = 0;
}

// Wakes many waiters on the I/O threads, in pieces, so that other work comes in between.
void Server::Impl::dispatch(std::shared_ptr<ChangeNotifier::Waiting> waiting) {
  asio::post(context, [this, waiting = std::move(waiting)]() mutable {
    for (int i = 0; i < kWakenAtOnce && !waiting->empty(); ++i) {
      waiting->begin()->second();
      waiting->erase(waiting->begin());
    }
    if (!waiting->empty()) {
      dispatch(std::move(waiting));
    }
  });
}

Server::Server(ServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {
  impl_->listen();
}

Server::~Server() = default;

uint16_t Server::port() const { return impl_->acceptor.local_endpoint().port(); }

ClientConnections::Counts Server::connections() const { return impl_->connections.counts(); }

void Server::look_at_tokens() {
  for (const auto& connection : impl_->connections.all()) connection->look_at_token();
}

size_t Server::bytes_held() const { return impl_->bytes.held(); }

void Server::every(std::chrono::milliseconds interval, std::function<void()> action) {
  impl_->timers.push_back(std::make_unique<Timer>(
      Timer{asio::steady_timer(impl_->accept_strand), interval, std::move(action)}));
}

void Server::on_stop(std::function<void()> action) { impl_->stop_action = std::move(action); }

void Server::post(std::function<void()> action) {
  asio::post(impl_->accept_strand, std::move(action));
}

void Server::stop() {
  post([&impl = *impl_] {
    Services& services = *impl.served;
    // Who asks twice does not want to wait.
    services.draining ? impl.begin_stop(services) : impl.begin_drain(services);
  });
}

void Server::run(Services& services, const Router& router) {
  Impl& impl = *impl_;
  impl.served = &services;
  services.notifiers.dispatcher = [&impl](std::shared_ptr<ChangeNotifier::Waiting> waiting) {
    impl.dispatch(std::move(waiting));
  };
  for (auto& timer : impl.timers) {
    asio::spawn(
        impl.accept_strand,
        [&](asio::yield_context yield) { impl.repeat(*timer, yield, services); }, rethrow);
  }
  asio::spawn(
      impl.accept_strand,
      [&](asio::yield_context yield) { impl.accept_loop(yield, services, router); }, rethrow);
  std::vector<std::thread> others;
  for (int i = 1; i < impl.options.threads; ++i) {
    others.emplace_back([&impl] {
      name_thread("http");
      guarded_run(impl.context);
    });
  }
  guarded_run(impl.context);
  for (std::thread& thread : others) {
    thread.join();
  }
}

}  // namespace gnomon
