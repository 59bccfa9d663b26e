#include "protocol/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/version.h"
#include "protocol/json.h"
#include "protocol/tls_context.h"

namespace gnomon {
namespace {

// In words; `title` becomes the problem document's, or stays empty.
std::string describe(const HttpResponse& response, std::string& title) {
  constexpr size_t kShownMax = 300;
  try {
    const auto problem = from_json<Problem>(response.body);
    title = problem.title;
    std::string text = problem.title;
    if (!problem.detail.empty()) text += (text.empty() ? "" : ": ") + problem.detail;
    if (!problem.accepted.empty()) text += fmt::format(" (accepted: {})", problem.accepted);
    if (!text.empty()) return text;
  } catch (const JsonError&) {
    // Not a problem document: something else than gnomond answered, so its own words are the best
    // there is.
  }
  return response.body.substr(0, kShownMax);
}

// Checks everything that is named, but for the files of TLS. Throws ConfigError.
Origin checked_origin(const ClientOptions& options) {
  const std::optional<Origin> origin = parse_origin(options.url);
  if (!origin) {
    // What stands before an @ may be a password.
    const bool has_user = options.url.find('@') != std::string::npos;
    throw ConfigError("", 0, "controller", has_user ? "(not shown)" : "\"" + options.url + "\"",
                      has_user ? "a URL without a user: a token_file says who asks"
                               : "a URL like \"http://127.0.0.1:7717\" or \"https://HOST:PORT\"");
  }
  if (!read_token(options).empty() && !origin->secure && !origin->is_loopback()) {
    throw ConfigError("", 0, "controller", "\"" + options.url + "\"",
                      "an https:// URL: a token is not sent in the clear to another machine");
  }
  if (options.certificate_file.empty() != options.key_file.empty()) {
    const bool no_key = options.key_file.empty();
    throw ConfigError("", 0, no_key ? "key_file" : "certificate_file", "",
                      no_key ? "the key of certificate_file" : "the certificate of key_file");
  }
  return *origin;
}

std::shared_ptr<const TlsPem> read_tls(const ClientOptions& options) {
  try {
    return std::make_shared<const TlsPem>(
        read_client_tls({options.certificate_file, options.key_file, options.ca_file}));
  } catch (const TlsFileError& error) {
    using Which = TlsFileError::Which;
    const char* key = error.which() == Which::kCa    ? "ca_file"
                      : error.which() == Which::kKey ? "key_file"
                                                     : "certificate_file";
    throw ConfigError("", 0, key, error.file(),
                      fmt::format("{} ({})", error.accepted(), error.wrong()));
  }
}

// Errors show no query.
std::string_view path_of(std::string_view target) { return target.substr(0, target.find('?')); }

// What to do about an error in libcurl's words, which have OpenSSL's; empty: nothing to add.
std::string_view advice(std::string_view error) {
  constexpr std::string_view kAuthority =
      "; its authority is not trusted here: name that authority's certificate as ca_file "
      "(controller.ca_file, --ca-file, GNOMON_CA_FILE)";
  constexpr std::string_view kOwn =
      "; it does not accept this client's certificate, or that there is none: name one as "
      "certificate_file and key_file (of [controller], as options, or as GNOMON_CERTIFICATE_FILE "
      "and GNOMON_KEY_FILE)";
  constexpr std::string_view kNotTls =
      "; it does not speak TLS there: is it http:// instead of https://?";
  constexpr std::pair<std::string_view, std::string_view> kAdvice[] = {
      {"issuer certificate", kAuthority},
      {"self-signed certificate", kAuthority},
      {"self signed certificate", kAuthority},
      {"verify the first certificate", kAuthority},
      {"certificate signature failure", kAuthority},
      {"certificate has expired",
       "; it must be renewed where gnomond runs (or this machine's clock is wrong)"},
      {"certificate is not yet valid", "; look at the clocks of both machines"},
      {"target host name", "; use a URL with one of the names in its certificate"},
      {"wrong version number", kNotTls},
      {"packet length too long", kNotTls},
      {"alert certificate", kOwn},
      {"alert bad certificate", kOwn},
      {"alert unknown ca", kOwn},
      {"alert decrypt error", kOwn},
      {"alert handshake failure", kOwn},
      {"HTTP/0.9", "; it does not speak HTTP there: is it https:// instead of http://?"},
  };
  for (const auto& [part, text] : kAdvice) {
    if (error.find(part) != std::string_view::npos) return text;
  }
  return {};
}

}  // namespace

bool may_pass(int status) {
  switch (status) {
    case 401:
    case 403:
    case 408:
    case 429:
    case 502:
    case 503:
    case 504:
    case 507:
      return true;
    default:
      return false;
  }
}

std::chrono::milliseconds asked_pause(const std::exception& error) {
  constexpr int kLongest = 60;
  const auto* answer = dynamic_cast<const ApiError*>(&error);
  return std::chrono::seconds(answer == nullptr ? 0 : std::min(answer->retry_after(), kLongest));
}

HttpClient::HttpClient(ClientOptions options)
    : options_(std::move(options)), origin_(checked_origin(options_)) {
  if (origin_.secure) read_tls(options_);
}

// The answer, or why there is none.
HttpResult HttpClient::exchange(HttpCall call) {
  const HttpResult cancelled{.error = "cancelled"};
  if (cancelled_.exchange(false)) return cancelled;
  call.new_connection = token_refused_ || !transfers_.is_connected();
  if (call.new_connection) {
    // Tokens and certificates are replaced while a run goes on.
    try {
      token_ = read_token(options_);
      if (origin_.secure) tls_ = read_tls(options_);
    } catch (const ConfigError& error) {
      return {.error = error.what()};
    }
  }
  call.tls = tls_;
  if (!token_.empty()) call.headers.push_back("Authorization: Bearer " + token_);
  transfers_.start(0, std::move(call));
  while (true) {
    std::vector<HttpResult> results = transfers_.wait(std::chrono::hours(1));
    if (!results.empty()) return std::move(results.front());
    if (cancelled_.exchange(false)) {
      transfers_.abandon();
      return cancelled;
    }
  }
}

HttpResponse HttpClient::request(const std::string& method, const std::string& target,
                                 const std::string& body, std::chrono::milliseconds timeout) {
  HttpResult result = exchange({.method = method,
                                .url = options_.url,
                                .target = target,
                                .user_agent = fmt::format("gnomon/{}", kVersion),
                                .body = body,
                                .timeout = timeout,
                                .answer_bytes_max = options_.answer_bytes_max,
                                .ciphers = kTls12Ciphers});
  if (!result.error.empty()) {
    throw ConnectionError(fmt::format("cannot {} the controller at {} ({} {}): {}{}",
                                      result.connected ? "get an answer from" : "connect to",
                                      options_.url, method, path_of(target), result.error,
                                      advice(result.error)));
  }
  token_refused_ = result.response.status == 401 || result.response.status == 403;
  return std::move(result.response);
}

HttpResponse HttpClient::checked(const std::string& method, const std::string& target,
                                 const std::string& body, std::chrono::milliseconds timeout) {
  HttpResponse response = request(method, target, body, timeout);
  if (response.status >= 400) {
    std::string title;
    std::string words = describe(response, title);
    if (response.status == 401 || response.status == 403) {
      words +=
          "; a token is named by token_file of [controller], --token-file, GNOMON_TOKEN_FILE, "
          "or is GNOMON_TOKEN";
    }
    throw ApiError(response.status,
                   fmt::format("{} {}: {} {}", method, path_of(target), response.status, words),
                   title, response.retry_after);
  }
  return response;
}

void HttpClient::cancel() {
  cancelled_ = true;
  transfers_.wake();
}

}  // namespace gnomon
