// A check that a record describes all of its members.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <map>

#include "protocol/records/member.h"

namespace gnomon::test {

// The described members lie one behind the other: a member that nobody describes leaves a gap that
// is larger than the room between two of them.
template <typename R>
void expect_all_described() {
  constexpr size_t kRoom = alignof(std::max_align_t) / 2;
  R record{};
  const auto place = [&](const auto& member) {
    return static_cast<size_t>(reinterpret_cast<const char*>(&member) -
                               reinterpret_cast<const char*>(&record));
  };
  std::map<size_t, size_t> places;  // of a member's begin, its size
  R::describe([&](const char*, auto access, const Member&) {
    const auto& member = std::invoke(access, record);
    places[place(member)] = sizeof(member);
  });
  size_t end = 0;
  for (const auto& [begin, size] : places) {
    EXPECT_LT(begin, end + kRoom) << "nobody describes what lies at byte " << end;
    end = begin + size;
  }
  EXPECT_LT(sizeof(R), end + kRoom) << "nobody describes what lies at byte " << end;
}

}  // namespace gnomon::test
