// operator new of a program that links counting_new.cc counts requests and remembers the largest.
#pragma once

#include <cstddef>

namespace gnomon::test {

void forget_requests();
std::size_t largest_request_bytes();
std::size_t requests();

}  // namespace gnomon::test
