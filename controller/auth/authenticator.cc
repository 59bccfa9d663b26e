#include "controller/auth/authenticator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/crypto.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <cctype>
#include <cmath>
#include <limits>

#include "base/errors.h"
#include "base/sha256.h"
#include "controller/auth/http_error.h"
#include "protocol/site_glob.h"

namespace gnomon {
namespace {

constexpr double kLogEverySeconds = 10;

const PrincipalPtr& anonymous() {
  static const PrincipalPtr principal =
      std::make_shared<const Principal>(Token{"anonymous", Role::kAdmin});
  return principal;
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

// The secret in "Bearer SECRET"; empty when it is another scheme.
std::string_view bearer_of(std::string_view authorization) {
  constexpr std::string_view kScheme = "Bearer ";
  if (authorization.size() <= kScheme.size() ||
      !equal_ignoring_case(authorization.substr(0, kScheme.size()), kScheme)) {
    return {};
  }
  std::string_view secret = authorization.substr(kScheme.size());
  secret.remove_prefix(std::min(secret.find_first_not_of(' '), secret.size()));
  return secret.substr(0, secret.find_last_not_of(' ') + 1);
}

// "[::1]:7717" and "localhost:7717" without their ports.
std::string_view name_in_host(std::string_view host) {
  if (host.starts_with('[')) {
    const size_t close = host.find(']');
    return close == std::string_view::npos ? host : host.substr(1, close - 1);
  }
  return host.substr(0, host.find(':'));
}

bool is_loopback_name(std::string_view name) {
  if (equal_ignoring_case(name, "localhost")) return true;
  boost::system::error_code unreadable;
  const auto address = boost::asio::ip::make_address(std::string(name), unreadable);
  return !unreadable && address.is_loopback();
}

// "example.org:80" of "https://example.org:80/path"; "null" stays as it is.
std::string_view authority_of(std::string_view url) {
  const size_t scheme = url.find("://");
  if (scheme != std::string_view::npos) url.remove_prefix(scheme + 3);
  return url.substr(0, url.find_first_of("/?#"));
}

// An IPv6 network of one customer counts as one address.
std::string address_key(const std::string& address) {
  boost::system::error_code unreadable;
  const auto parsed = boost::asio::ip::make_address(address, unreadable);
  if (unreadable || !parsed.is_v6() || parsed.to_v6().is_v4_mapped()) return "address " + address;
  const auto bytes = parsed.to_v6().to_bytes();
  std::string key = "address ";
  for (int i = 0; i < 8; ++i) key += fmt::format("{:02x}", bytes[static_cast<size_t>(i)]);
  return key;
}

}  // namespace

std::string foreign_page(const Caller& caller) {
  const auto is_own = [&](std::string_view url) {
    return equal_ignoring_case(authority_of(url), caller.host);
  };
  if (!caller.origin.empty() && !is_own(caller.origin)) {
    return fmt::format("a page of {}", caller.origin);
  }
  if (!caller.fetch_site.empty() && !equal_ignoring_case(caller.fetch_site, "same-origin")) {
    return fmt::format("a browser, not for the daemon's own page (Sec-Fetch-Site: {}),",
                       caller.fetch_site);
  }
  if (!caller.referer.empty() && !is_own(caller.referer)) {
    return fmt::format("a page at {}", authority_of(caller.referer));
  }
  return {};
}

bool Principal::may_change(std::string_view run_name) const {
  return !has_runs() || std::ranges::any_of(token_.runs, [&](const std::string& glob) {
    return simple_glob_matches(glob, run_name);
  });
}

std::string Principal::runs_text() const { return fmt::format("{}", fmt::join(token_.runs, ", ")); }

Authenticator::Authenticator(const AuthSettings& settings, Clock wall, Clock steady)
    : wall_(std::move(wall)), steady_(std::move(steady)) {
  configure(settings);
}

Authenticator::FileState Authenticator::state_of(const std::string& file) {
  struct stat status {};
  if (file.empty() || ::stat(file.c_str(), &status) != 0) return {};
  return {static_cast<int64_t>(status.st_ino), status.st_size,
          status.st_ctim.tv_sec * 1'000'000'000 + status.st_ctim.tv_nsec};
}

void Authenticator::configure(const AuthSettings& settings) {
  const FileState state = state_of(settings.tokens);
  apply(settings, settings.tokens.empty() ? std::vector<Token>() : read_tokens(settings.tokens),
        state);
}

void Authenticator::reload_changed_tokens() {
  AuthSettings settings;
  {
    const std::lock_guard lock(mutex_);
    settings = settings_;
    if (settings.tokens.empty() || state_of(settings.tokens) == state_) {
      bad_.clear();
      return;
    }
  }
  try {
    configure(settings);
    const std::lock_guard lock(mutex_);
    if (entries_.empty()) {
      spdlog::warn(
          "the tokens of {} were read again, and there are none: nobody may speak to "
          "this daemon",
          settings.tokens);
    } else {
      spdlog::info("the tokens of {} were read again: {}", settings.tokens, entries_.size());
    }
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    if (bad_ == error.what()) return;
    bad_ = error.what();
    spdlog::error("the tokens were not read again, the last good ones stay: {}", bad_);
  }
}

bool Authenticator::current() const {
  const std::lock_guard lock(mutex_);
  return bad_.empty();
}

// A token that stays the same keeps its principal, and so the requests that wait in its name.
void Authenticator::apply(const AuthSettings& settings, const std::vector<Token>& tokens,
                          FileState state) {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> entries;
  for (const Token& token : tokens) {
    auto same = std::ranges::find(entries_, token, &Entry::token);
    if (same != entries_.end()) {
      entries.push_back({token, std::move(same->principal)});
    } else {
      entries.push_back({token, std::make_shared<Principal>(token)});
    }
  }
  for (const Entry& gone : entries_) {
    if (!gone.principal) continue;
    gone.principal->revoke();
    ++revocations_;
  }
  entries_ = std::move(entries);
  settings_ = settings;
  state_ = state;
  bad_.clear();
}

size_t Authenticator::connections_max() const {
  const std::lock_guard lock(mutex_);
  return settings_.tokens.empty() ? std::numeric_limits<size_t>::max()
                                  : static_cast<size_t>(settings_.connections);
}

bool Authenticator::closed() const {
  const std::lock_guard lock(mutex_);
  return !settings_.tokens.empty();
}

// Looks at every token, so that the time says nothing of where one stands or how much of it fits.
PrincipalPtr Authenticator::find(std::string_view secret) const {
  const std::string hash = sha256_hex(secret);
  const double now = wall_();
  PrincipalPtr found;
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(entry.token.sha256.data(), hash.data(), hash.size()) == 0 &&
        entry.principal->valid(now)) {
      found = entry.principal;
    }
  }
  return found;
}

void Authenticator::check_site(const Caller& caller, bool closed) const {
  if (!closed && !caller.host.empty() && !is_loopback_name(name_in_host(caller.host))) {
    throw HttpError(
        403, "Foreign host name",
        fmt::format("the request is for {}, and this daemon has no tokens", caller.host),
        "localhost, 127.0.0.1 or [::1]; with [auth] tokens any name");
  }
  const bool changes = caller.method != "GET" && caller.method != "HEAD";
  if (changes) refuse_foreign_page(foreign_page(caller));
}

void Authenticator::refuse_foreign_page(const std::string& page) {
  if (page.empty()) return;
  throw HttpError(403, "Foreign origin", fmt::format("{} has sent this request", page),
                  "requests of the daemon's own page, or of programs (no Origin, Sec-Fetch-Site or "
                  "Referer)");
}

void Authenticator::limit(const std::string& key, const Rate& rate) {
  const double wait = limiter_.acquire(key, rate, steady_());
  if (wait <= 0) return;
  throw HttpError(429, "Too many requests",
                  fmt::format("more than {:g} requests a second (or {:g} at once)", rate.per_second,
                              rate.burst),
                  "the same request after the seconds of Retry-After")
      .retry_after(std::ceil(wait));
}

PrincipalPtr Authenticator::admit(const Caller& caller) {
  AuthSettings settings;
  {
    const std::lock_guard lock(mutex_);
    settings = settings_;
  }
  const bool closed = !settings.tokens.empty();
  check_site(caller, closed);
  if (!closed) return anonymous();
  const std::string_view secret = bearer_of(caller.authorization);
  PrincipalPtr principal = secret.empty() ? nullptr : find(secret);
  if (principal) {
    limit("token " + principal->name(), settings.principal);
    return principal;
  }
  if (caller.probe != Caller::Probe::kNone) {
    if (caller.probe == Caller::Probe::kReady) {
      limit("probe " + address_key(caller.address), settings.stranger);
    }
    return nullptr;
  }
  limit(address_key(caller.address), settings.stranger);
  if (caller.authorization.empty()) return nullptr;
  log_rejected_token(caller);
  throw HttpError(401, "Token not accepted", "the token is not known, was revoked, or is over",
                  "Authorization: Bearer TOKEN, with one of `gnomon token create`");
}

void Authenticator::admit_malformed(const std::string& address) {
  Rate stranger;
  {
    const std::lock_guard lock(mutex_);
    if (settings_.tokens.empty()) return;
    stranger = settings_.stranger;
  }
  limit(address_key(address), stranger);
}

void Authenticator::authorise(const PrincipalPtr& principal, Access access) {
  if (access == Access::kOpen) return;
  if (!principal) {
    throw HttpError(401, "Token missing", "this daemon answers to tokens",
                    "Authorization: Bearer TOKEN, with one of `gnomon token create`");
  }
  if (!may(principal->role(), access)) {
    throw HttpError(403, "Role not accepted",
                    fmt::format("the token \"{}\" has the role {}", principal->name(),
                                role_name(principal->role())),
                    fmt::format("a token of the role {}", roles_with(access)));
  }
}

void Authenticator::authorise_run(const Principal& principal, std::string_view run_name) {
  if (principal.may_change(run_name)) return;
  throw HttpError(403, "Run not accepted",
                  fmt::format("the token \"{}\" is for the runs {}, and this one is \"{}\"",
                              principal.name(), principal.runs_text(), run_name),
                  "a token for this run; gnomon token list shows for which each is");
}

// Never the token, which may be another service's, sent here by mistake.
void Authenticator::log_rejected_token(const Caller& caller) {
  const std::lock_guard lock(mutex_);
  ++unlogged_;
  if (steady_() - logged_at_ < kLogEverySeconds) return;
  spdlog::warn("a token was not accepted, of a request from {} ({} since the last such line)",
               caller.address, unlogged_);
  logged_at_ = steady_();
  unlogged_ = 0;
}

}  // namespace gnomon
