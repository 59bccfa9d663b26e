// An exception in one handler of the server is not the end of the others.
#include "controller/api/guarded_run.h"

#include <gtest/gtest.h>

#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <stdexcept>

namespace gnomon {
namespace {

TEST(GuardedRunTest, WhatOneHandlerThrowsEndsNoOther) {
  boost::asio::io_context context;
  auto strand = boost::asio::make_strand(context);
  int done = 0;
  for (int i = 0; i < 3; ++i) {
    boost::asio::post(strand, [] { throw std::length_error("too long"); });
    boost::asio::post(strand, [&] { ++done; });
    boost::asio::post(context, [] { throw std::bad_alloc(); });
    boost::asio::post(context, [&] { ++done; });
  }
  guarded_run(context);
  EXPECT_EQ(done, 6);
}

}  // namespace
}  // namespace gnomon
