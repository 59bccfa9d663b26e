// What went wrong with a request: application/problem+json (RFC 9457).
#pragma once

#include <string>

#include "protocol/records/member.h"

namespace gnomon {

// RFC 9457 application/problem+json.
struct Problem {
  std::string type = "about:blank";
  std::string title;
  int status = 500;
  std::string detail;
  std::string accepted;

  static constexpr Record kRecord = {"Problem", "RFC 9457."};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = Problem;
    v("type", &R::type, Member{.text = kAnyText});
    v("title", &R::title, Member{.text = kAnyText});
    v("status", &R::status, Member{.range = {400, 599}});
    v("detail", &R::detail, Member{.text = kAnyText, .help = "What was wrong, with which value."});
    v("accepted", &R::accepted,
      Member{.text = kAnyText, .help = "What would be accepted; may be empty."});
  }
};

}  // namespace gnomon
