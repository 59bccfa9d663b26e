// Work on an Asio context that an exception does not end.
#pragma once

#include <spdlog/spdlog.h>

#include <boost/asio/io_context.hpp>
#include <exception>

namespace gnomon {

// Runs handlers until the context is stopped or has nothing to do. What a handler throws is logged,
// and ends what it belonged to and nothing else: a connection's coroutine goes with the operation
// that it waited for.
inline void guarded_run(boost::asio::io_context& context) {
  for (;;) {
    try {
      context.run();
      return;
    } catch (const std::exception& error) {
      spdlog::error("an error that nobody expected, on a thread of the server: {}", error.what());
    }
  }
}

}  // namespace gnomon
