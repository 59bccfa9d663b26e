// The file of tokens: who may speak to gnomond, by the SHA-256 of a secret that only its owner has.
// `gnomon token` writes it, gnomond reads it. A secret has 264 random bits, so that a plain hash is
// enough: nothing can be guessed back from it (a slow hash is for passwords).
//
//   [[token]]
//   name = "prometheus"                  # in logs and the audit log
//   role = "reader"
//   sha256 = "…"                         # of the whole secret, its prefix included
//   created = "2026-11-22T18:30:00Z"
//   expires = "2027-11-22T18:30:00Z"     # absent: never
//   runs = ["team-a-*"]                  # names of runs, of a trainer or operator; absent: all
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "controller/auth/roles.h"

namespace gnomon {

struct Token {
  std::string name;
  Role role = Role::kReader;
  std::string sha256 = {};
  double created = 0;  // seconds since the epoch
  double expires = 0;  // the same; 0: never
  // The names of the runs that it may change, with '*' (any text) and '?' (a character); none: all.
  std::vector<std::string> runs = {};
  bool operator==(const Token&) const = default;
};

// Both throw ConfigError, naming the line: unknown keys, a name or a hash that stands twice, ... It
// has nothing of what stands there, which may be a secret that was put in a hash's place.
std::vector<Token> parse_tokens(std::string_view toml, const std::string& file);
std::vector<Token> read_tokens(const std::filesystem::path& file);
std::string tokens_as_toml(const std::vector<Token>& tokens);

// A new secret: "gnomon_" and 44 characters of base64url (RFC 4648). Throws Error when the system
// gives no random bytes.
std::string make_secret();

// What is wrong with a token's name; empty when nothing is: 1 to 64 letters, digits, ".", "_", "-",
// "@", ":".
std::string problem_with_token_name(const std::string& name);

// What would be accepted in place of such `runs` for this role, in words; empty when they are fine:
// up to 16 names of 1 to 200 bytes, and only for trainers and operators, whose work is runs.
std::string problem_with_runs(const std::vector<std::string>& runs, Role role);

// Changes the file: reads it (an absent one is empty), calls `change`, writes it back atomically
// with its owner and mode; a new one only its owner may read. Two at a time wait for each other.
// Throws ConfigError, SystemError, and what `change` throws.
void edit_tokens(const std::filesystem::path& file,
                 const std::function<void(std::vector<Token>&)>& change);

// "2026-11-22T18:30:00Z" (RFC 3339, UTC, whole seconds) and back; parse_utc gives NaN on anything
// else.
std::string utc_text(double seconds);
double parse_utc(const std::string& text);

}  // namespace gnomon
