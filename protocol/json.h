// JSON of the records (protocol/records). to_json() writes every member under its own name; a text
// that may not be empty, and an optional value, are left out where there is none. Reading refuses
// unknown members, missing required members and wrong types with a JsonError that names the path.
// Doubles that JSON cannot write are the strings "NaN", "Infinity", "-Infinity".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "protocol/records.h"

namespace gnomon {

// `path` is like "steps[3].loss".
class JsonError : public Error {
 public:
  JsonError(std::string path, std::string found, std::string accepted);
  const std::string& path() const { return path_; }
  const std::string& accepted() const { return accepted_; }

 private:
  std::string path_;
  std::string accepted_;
};

// A list has more items than its member may have.
class TooManyItems : public JsonError {
 public:
  using JsonError::JsonError;
};

// Instantiated in json.cc for every record.
template <typename Message>
std::string to_json(const Message& message);
// What we wrote ourselves (a ledger): the rules of its members are not asked, so that one
// that grows stricter locks nobody out of what is on record.
template <typename Message>
Message from_json(std::string_view text);
// The same of a daemon's answer, whose daemon may be newer: members that are not known are ignored.
template <typename Message>
Message from_answer(std::string_view text);
// What came from outside: every member's rules hold too.
template <typename Message>
Message from_request(std::string_view body);
// The same, but texts other than words and hashes are not looked at.
template <typename Message>
Message from_request_with_any_text(std::string_view body);

// A list of texts as a JSON array.
std::string strings_to_json(const std::vector<std::string>& strings);
std::vector<std::string> strings_from_json(std::string_view text);

}  // namespace gnomon
