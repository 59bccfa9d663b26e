// operator new of a program that links counting_new.cc remembers the largest request.
#pragma once

#include <cstddef>

namespace gnomon::test {

void forget_requests();
std::size_t largest_request_bytes();

}  // namespace gnomon::test
