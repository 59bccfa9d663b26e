#include "controller/auth/tokens.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <ctime>
#include <iterator>
#include <optional>

#include "base/errors.h"
#include "base/file_access.h"
#include "base/files.h"
#include "base/named_file.h"
#include "base/redaction.h"
#include "protocol/text.h"
#include "protocol/toml_reader.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNameMax = 64;
constexpr const char* kNameAccepted = "1 to 64 letters, digits, \".\", \"_\", \"-\", \"@\", \":\"";
constexpr size_t kRunsMax = 16;
constexpr size_t kRunNameMax = 200;
constexpr const char* kHeader =
    "# Who may speak to gnomond; written by `gnomon token`. The secrets are not in it.\n";

bool is_sha256(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

Token read_token(TomlTable& table) {
  Token token;
  token.name = table.text("name", "");
  if (!problem_with_token_name(token.name).empty()) table.refuse("name", kNameAccepted);
  const std::optional<Role> role = role_from_name(table.text("role", ""));
  if (!role) table.refuse("role", fmt::format("one of {}", fmt::join(role_names(), ", ")));
  token.role = *role;
  token.sha256 = table.text("sha256", "");
  if (!is_sha256(token.sha256)) {
    table.refuse("sha256", "64 lower-case hexadecimal digits, as `gnomon token create` writes");
  }
  token.created = parse_utc(table.text("created", utc_text(0)));
  if (std::isnan(token.created)) table.refuse("created", "a time like \"2026-11-22T18:30:00Z\"");
  if (table.has("expires")) {
    token.expires = parse_utc(table.text("expires", ""));
    if (!(token.expires > 0)) table.refuse("expires", "a time like \"2027-11-22T18:30:00Z\"");
  }
  token.runs = table.texts("runs", {});
  const bool none = table.has("runs") && token.runs.empty();
  const std::string accepted =
      none ? "one name or more; without the key, all runs" : problem_with_runs(token.runs, *role);
  if (!accepted.empty()) table.refuse("runs", accepted);
  table.refuse_unknown_keys();
  return token;
}

// Holds a lock on the file's folder: the file itself is replaced by each change.
FileDescriptor lock_folder(const fs::path& file) {
  const fs::path folder = fs::absolute(file).parent_path();
  FileDescriptor lock = FileDescriptor::open(folder, O_RDONLY | O_DIRECTORY);
  while (::flock(lock.get(), LOCK_EX) != 0) {
    if (errno != EINTR) throw SystemError("lock", folder.string(), errno);
  }
  return lock;
}

// Before the rename, so that nobody reads it who should not: write_file_atomically would make the
// new file with another mode for a moment.
void replace_file(const fs::path& file, const std::string& content) {
  const std::optional<Ownership> old = ownership_of(file);
  const fs::path partial = file.string() + ".partial";
  ::unlink(partial.c_str());
  FileDescriptor out = FileDescriptor::open(partial, O_WRONLY | O_CREAT | O_EXCL, 0600);
  try {
    if (old) give_ownership(out, *old, partial);
    write_all(out.get(), content, partial);
    if (::fsync(out.get()) != 0) throw SystemError("sync", partial.string(), errno);
    if (::rename(partial.c_str(), file.c_str()) != 0) {
      throw SystemError("replace", file.string(), errno);
    }
  } catch (...) {
    ::unlink(partial.c_str());
    throw;
  }
  sync_path(fs::absolute(file).parent_path());
}

}  // namespace

static std::vector<Token> tokens_of(TomlTable root) {
  std::vector<Token> tokens;
  for (TomlTable& table : root.tables("token")) {
    Token token = read_token(table);
    for (const Token& other : tokens) {
      if (other.name == token.name) table.refuse("name", "a name that no other token has");
      if (other.sha256 == token.sha256) table.refuse("sha256", "a hash that no other token has");
    }
    tokens.push_back(std::move(token));
  }
  root.refuse_unknown_keys();
  return tokens;
}

std::vector<Token> parse_tokens(std::string_view toml, const std::string& file) {
  try {
    return tokens_of(TomlTable::parse(toml, file));
  } catch (const ConfigError& error) {  // a secret may stand where its hash belongs, or anywhere
    throw without_text(
        error, {"token", "name", "role", "sha256", "created", "expires", "runs", "nesting"});
  }
}

std::vector<Token> read_tokens(const fs::path& file) {
  std::string text;
  try {
    text = read_named_file(file);
  } catch (const Error& error) {
    throw ConfigError("", 0, "auth.tokens", file.string(),
                      fmt::format("a file that can be read ({})", error.what()));
  }
  if (text.empty()) {
    throw ConfigError("", 0, "auth.tokens", file.string(),
                      "a file as `gnomon token create` writes it; one without a byte is taken for "
                      "one that is being written, and locks nobody out");
  }
  return parse_tokens(text, file.string());
}

std::string tokens_as_toml(const std::vector<Token>& tokens) {
  std::string text = kHeader;
  for (const Token& token : tokens) {
    text += fmt::format("\n[[token]]\nname = {}\nrole = {}\nsha256 = \"{}\"\ncreated = \"{}\"\n",
                        toml_quoted(token.name), toml_quoted(role_name(token.role)), token.sha256,
                        utc_text(token.created));
    if (token.expires > 0) text += fmt::format("expires = \"{}\"\n", utc_text(token.expires));
    if (token.runs.empty()) continue;
    std::vector<std::string> quoted;
    std::ranges::transform(token.runs, std::back_inserter(quoted), toml_quoted);
    text += fmt::format("runs = [{}]\n", fmt::join(quoted, ", "));
  }
  return text;
}

std::string make_secret() {
  std::array<unsigned char, 33> bytes{};  // 264 bits: 44 characters without padding
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) {
    throw Error("the system gives no random bytes for a token");
  }
  std::array<unsigned char, 45> base64{};
  EVP_EncodeBlock(base64.data(), bytes.data(), static_cast<int>(bytes.size()));
  std::string secret(reinterpret_cast<const char*>(base64.data()), 44);
  std::ranges::replace(secret, '+', '-');
  std::ranges::replace(secret, '/', '_');
  return "gnomon_" + secret;
}

std::string problem_with_token_name(const std::string& name) {
  const bool good =
      !name.empty() && name.size() <= kNameMax && std::ranges::all_of(name, [](unsigned char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '.' || c == '_' || c == '-' || c == '@' || c == ':';
      });
  return good ? std::string() : kNameAccepted;
}

std::string problem_with_runs(const std::vector<std::string>& runs, Role role) {
  if (runs.empty()) return {};
  if (role != Role::kTrainer && role != Role::kOperator) {
    return "runs for a token of the role trainer or operator alone";
  }
  const bool good = runs.size() <= kRunsMax && std::ranges::all_of(runs, [](const auto& name) {
                      return !name.empty() && name.size() <= kRunNameMax && is_one_line(name);
                    });
  return good ? std::string()
              : fmt::format("up to {} names of runs of 1 to {} bytes, with * and ?", kRunsMax,
                            kRunNameMax);
}

void edit_tokens(const fs::path& file, const std::function<void(std::vector<Token>&)>& change) {
  const FileDescriptor lock = lock_folder(file);
  std::vector<Token> tokens;
  if (fs::exists(file) && fs::file_size(file) > 0) tokens = read_tokens(file);
  change(tokens);
  const std::string text = tokens_as_toml(tokens);
  if (text.size() > kNamedFileBytesMax) {
    throw Error(
        fmt::format("{} would have more than {} KiB, which gnomond does not read; revoke "
                    "tokens that are not used",
                    file.string(), kNamedFileBytesMax >> 10));
  }
  // A link, as in a mounted secret, is its owner's: its target is replaced instead.
  replace_file(fs::exists(file) ? fs::canonical(file) : file, text);
}

std::string utc_text(double seconds) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

double parse_utc(const std::string& text) {
  std::tm parts{};
  const char* end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  if (end == nullptr || *end != '\0') return std::nan("");
  return static_cast<double>(::timegm(&parts));
}

}  // namespace gnomon
