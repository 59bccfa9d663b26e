// JSON of the messages. to_json writes every member under its own name in snake_case; from_json
// refuses unknown members, missing required members and wrong types with a JsonError that names the
// path. Doubles that JSON cannot write are the strings "NaN", "Infinity", "-Infinity".
#pragma once

#include <string>
#include <string_view>

#include "base/errors.h"
#include "protocol/messages.h"

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

// Instantiated in json.cc for every message struct of messages.h (and InjectedFault, Fingerprint).
template <typename Message>
std::string to_json(const Message& message);
template <typename Message>
Message from_json(std::string_view text);

}  // namespace gnomon
