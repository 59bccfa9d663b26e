// What is known of a record's member besides its type. Every record of this folder lists its
// members once, in `describe`. Its JSON, the rules of what is accepted, its columns in the ledger
// and its schema in the API's document come from that list.
//
//   struct Ping {
//     int64_t step = 0;
//     static constexpr Record kRecord = {"Ping", "Sent now and then."};
//     template <class Visitor>
//     static void describe(Visitor&& v) {
//       v("step", &Ping::step, Member{.required = true, .range = rules::kStep});
//     }
//   };
//
// A visitor is called with the name, an accessor for std::invoke, and a Member. A text that is one
// of a list is a Word (word.h).
#pragma once

#include <cstddef>
#include <limits>
#include <string_view>

namespace gnomon {

// Numbers that somebody may mean. JSON cannot write the last three: there they are the strings
// "NaN", "Infinity" and "-Infinity".
struct Range {
  double least = -std::numeric_limits<double>::max();
  double most = std::numeric_limits<double>::max();
  bool nan = false;
  bool infinity = false;
  bool minus_infinity = false;
};

// A text's size in bytes, and what is in it.
struct Text {
  enum class Form {
    kFree,
    kLine,  // no control characters, and none that change the direction of the text around them
    kHash,  // visible ASCII characters: hashes are only compared
  };
  size_t least = 0;  // an optional text that may not be empty is left out when it is
  size_t most = 200;
  Form form = Form::kLine;
};

// The usual ones.
namespace rules {

inline constexpr Range kAnyNumber = {.nan = true, .infinity = true, .minus_infinity = true};
inline constexpr double kStepsMax = 1e9;  // more than any run has
inline constexpr Range kStep = {0, kStepsMax};
inline constexpr Range kPlanVersion = {-kStepsMax, kStepsMax};
inline constexpr Range kCount = {0, 1e15};
inline constexpr Range kTokens = {0, 1e12};  // of one step
inline constexpr Range kSeconds = {0, 1e9};  // sums of such stay finite
inline constexpr Range kTime = {0, 1e11};    // since the epoch
// What was computed, and may have overflowed. What is larger, FP32 calls Infinity.
inline constexpr double kFp32Max = 1e39;
inline constexpr Range kComputed = {-kFp32Max, kFp32Max, true, true, true};
inline constexpr Range kMagnitude = {0, kFp32Max, true, true, false};

// What the daemon itself writes.
inline constexpr Text kAnyText = {.most = std::numeric_limits<size_t>::max(),
                                  .form = Text::Form::kFree};
inline constexpr Text kLine;
inline constexpr Text kName = {.least = 1};
inline constexpr Text kPath = {.most = 4096};
inline constexpr Text kSentence = {.most = 16'384, .form = Text::Form::kFree};
inline constexpr Text kPlanText = {.most = size_t{4} << 20, .form = Text::Form::kFree};
inline constexpr Text kHash = {.least = 1, .most = 128, .form = Text::Form::kHash};
inline constexpr Text kHashOrNothing = {.most = 128, .form = Text::Form::kHash};

}  // namespace rules

// A record's name in the API's document, and what it says there.
struct Record {
  const char* name;
  const char* help;
};

// A record that is a row of the ledger: its members are the columns of `table`, and the API shows
// it under `name`. NULL is NaN for a number, empty for a text, and no value for an optional one.
struct Row {
  const char* name;   // in the API's document; empty: it is not shown
  const char* table;  // empty: it is joined from several
};

// How the lists of `gnomon` show a column, under which heading; without one they do not.
struct Listed {
  enum class As { kPlain, kPercent, kNats, kTime };
  const char* heading = "";
  As as = As::kPlain;
};

// The metric that shows a number, divided by `divisor`.
struct Gauge {
  const char* name = "";
  const char* help = "";
  double divisor = 1;
};

struct Member {
  bool required = false;            // in a record that is read; others keep their default
  Range range = rules::kAnyNumber;  // of a number, or of each in a list
  Text text = rules::kLine;         // of a text, or of each in a list
  bool null = false;                // what is not there is written as null
  const char* json = "";            // of a text that holds JSON: the schema's name, or "object"
  size_t items_most = std::numeric_limits<size_t>::max();
  const char* help = "";
  Listed listed = {};
  Gauge gauge = {};
};

}  // namespace gnomon
