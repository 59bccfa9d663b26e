// The authenticator: who sends a request, whether he may, and whether he comes too often. Every
// request goes through admit() before its body is read, and through authorise() once its route is
// known.
//
// Without a file of tokens gnomond listens on loopback alone, and everybody on the machine is
// "anonymous" and may do everything. What is refused even then are a browser's requests that
// another site has caused: those for a foreign Host name (DNS rebinding) and, of those that change
// something, those of another site's page (cross-site request forgery): by Origin, Sec-Fetch-Site
// and Referer. A GET that changes something asks refuse_foreign_page() itself.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "controller/auth/rate_limit.h"
#include "controller/auth/roles.h"
#include "controller/auth/tokens.h"
#include "protocol/settings.h"

namespace gnomon {

struct AuthSettings {
  std::string tokens;          // empty: everybody is anonymous
  Rate principal{2000, 4000};  // of each token
  Rate stranger{20, 100};      // of each address
  int64_t connections = 512;   // of each token

  template <class Visitor>
  static void describe(Visitor&& v) {
    using S = AuthSettings;
    v("tokens", &S::tokens,
      Setting{.file = true,
              .reload = Reload::kNotSwitched,
              .help = "File of [tokens](security.md#tokens), checked every second; empty: access "
                      "for everybody on this machine."});
    v(
        "requests_per_second", [](auto& s) -> auto& { return s.principal.per_second; },
        Setting{
            .range = {0, 1e6},
            .help =
                "For each token; beyond: 429 with `Retry-After`. 0, or without tokens: no limit."});
    v(
        "request_burst", [](auto& s) -> auto& { return s.principal.burst; },
        Setting{.range = {1, 1e6}, .unit = "requests", .help = "Most at once, after a pause."});
    v(
        "stranger_requests_per_second", [](auto& s) -> auto& { return s.stranger.per_second; },
        Setting{.range = {0, 1e6}, .help = "For each address without a known token."});
    v(
        "stranger_request_burst", [](auto& s) -> auto& { return s.stranger.burst; },
        Setting{.range = {1, 1e6}, .unit = "requests", .help = "Most at once, after a pause."});
    v("connections", &S::connections,
      Setting{.range = {1, 1 << 20},
              .otherwise = "half of `limits.connections`",
              .help = "Connections of a token; beyond: 429 and the end of the connection."});
  }
  bool operator==(const AuthSettings&) const = default;
};

// Who sent a request. Lives as long as somebody holds it; a token that was revoked stays revoked.
class Principal {
 public:
  explicit Principal(Token token) : token_(std::move(token)) {}
  const std::string& name() const { return token_.name; }
  Role role() const { return token_.role; }
  // True when it may change only some runs; and when a run of this name is one of them.
  bool has_runs() const { return !token_.runs.empty(); }
  bool may_change(std::string_view run_name) const;
  std::string runs_text() const;  // "team-a-*, probe"
  // At `now`, seconds since the epoch: neither revoked nor over.
  bool valid(double now) const {
    return !revoked_ && (token_.expires == 0 || now < token_.expires);
  }
  void revoke() { revoked_ = true; }

 private:
  const Token token_;
  std::atomic<bool> revoked_ = false;
};

using PrincipalPtr = std::shared_ptr<const Principal>;

// What a request says of who sends it; absent headers are empty.
struct Caller {
  std::string_view method;
  std::string_view authorization;
  std::string_view host;
  std::string_view origin;
  std::string address;  // of the other end of the connection
  // It asks whether the daemon lives or is ready: with a token that is not known it is a
  // stranger's. Whether it lives is told without end; for the other there is a rate of each
  // address, beside the one for all else.
  enum class Probe { kNone, kLive, kReady } probe = Probe::kNone;
  std::string_view fetch_site = {};  // Sec-Fetch-Site, of browsers
  std::string_view referer = {};
};

// Which page of another site has caused a request, in words; empty when none has. Programs send
// none of the headers that say so, and a browser lets no page leave them all out.
std::string foreign_page(const Caller& caller);

class Authenticator {
 public:
  using Clock = std::function<double()>;
  // `wall` gives seconds since the epoch, `steady` those of a clock that never jumps. Throws
  // ConfigError when the tokens cannot be read.
  Authenticator(const AuthSettings& settings, Clock wall, Clock steady);

  // Who it is; null for a stranger (there are tokens, and none was sent). Throws HttpError: 401 for
  // a token that is not known, 403 for a request that another site caused, 429 with the time to
  // wait.
  PrincipalPtr admit(const Caller& caller);
  // Admits a request from `address` that could not be read: nobody knows whose it is, so it is a
  // stranger's. Throws HttpError (429) when there were too many.
  void admit_malformed(const std::string& address);
  // Throws HttpError (403) unless `page`, as foreign_page() gives it, is empty.
  static void refuse_foreign_page(const std::string& page);
  // Throws HttpError: 401 for a stranger, 403 for another role.
  static void authorise(const PrincipalPtr& principal, Access access);
  // Throws HttpError (403) when it may not change a run of this name.
  static void authorise_run(const Principal& principal, std::string_view run_name);
  bool valid(const Principal& principal) const { return principal.valid(wall_()); }

  // How many connections one principal may hold at once.
  size_t connections_max() const;
  // True when there are tokens.
  bool closed() const;
  // Takes new settings and reads the file. Throws ConfigError; then everything stays as it was.
  void configure(const AuthSettings& settings);
  // Reads the file again when it is another one than the one in force. What cannot be read is
  // logged once and tried again each time, and the last good tokens stay.
  void reload_changed_tokens();
  // True when the last look found the tokens in force, or could take those that it found.
  bool current() const;
  // How many principals are not valid any more; grows when the file lacks a token that it had.
  uint64_t revocations() const { return revocations_; }

 private:
  struct Entry {
    Token token;
    std::shared_ptr<Principal> principal;
  };
  struct FileState {  // another one: the file was written or replaced
    int64_t inode = 0, bytes = 0, changed_ns = 0;
    bool operator==(const FileState&) const = default;
  };

  static FileState state_of(const std::string& file);
  void apply(const AuthSettings& settings, const std::vector<Token>& tokens, FileState state);
  PrincipalPtr find(std::string_view secret) const;
  void check_site(const Caller& caller, bool closed) const;
  void limit(const std::string& key, const Rate& rate);
  void log_rejected_token(const Caller& caller);

  const Clock wall_;
  const Clock steady_;
  RateLimiter limiter_;
  mutable std::mutex mutex_;
  AuthSettings settings_;
  std::vector<Entry> entries_;
  FileState state_;
  std::string bad_;  // why the file could not be read, as it was logged; empty: it could
  std::atomic<uint64_t> revocations_ = 0;
  double logged_at_ = -1e9;  // steady; when a refused token was last logged
  int64_t unlogged_ = 0;     // refused since
};

}  // namespace gnomon
