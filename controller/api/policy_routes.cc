#include <fmt/format.h>

#include "controller/api/services.h"
#include "controller/decide/policy.h"
#include "controller/supervisor/ending.h"
#include "controller/supervisor/overrides.h"
#include "protocol/json.h"
#include "protocol/json_text.h"
#include "protocol/text.h"
#include "storage/json_rows.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

constexpr size_t kBodyMax = 256 << 10;

std::string policy_json(const decide::Policy& policy) {
  return fmt::format(R"({{"ok":true,"mode":"{}","policy":{}}})", decide::mode_name(policy.mode),
                     string_as_json(policy.to_toml()));
}

// As JSON the text is a string. What is none, though it says so, is taken for TOML, as clients send
// it that call every body JSON.
std::string toml_of(const Request& request) {
  if (request.content_type != "application/json") return request.body;
  try {
    const boost::json::value value = parse_json_exactly(request.body);
    if (value.is_string()) return std::string(value.get_string());
  } catch (const JsonError&) {  // TOML
  }
  return request.body;
}

// An empty file is a policy too, but a body that was forgotten must not replace one.
decide::Policy policy_of(const std::string& toml) {
  if (toml.empty()) {
    throw HttpError(400, "Value not accepted", "the body is empty",
                    "a policy (TOML); a comment alone stands for all defaults");
  }
  return decide::Policy::parse(toml, "policy");
}

Response show_policy(Exchange& exchange, const Request& request) {
  int64_t run = parse_run_id(request.arguments[0]);
  std::string toml;
  exchange.read([&](Connection& connection) {
    std::optional<RunRow> row = ledger::load_run(connection, run);
    if (!row) {
      throw unknown_run(request.arguments[0]);
    }
    toml = row->policy;
  });
  return {200, "application/toml", toml, {}, false};
}

Response put_policy(Services& services, Exchange& exchange, const Request& request) {
  int64_t run = parse_run_id(request.arguments[0]);
  const std::string toml = toml_of(request);
  const decide::Policy policy = policy_of(toml);
  audited_write(exchange, services, [&](LedgerTransaction& transaction) {
    set_policy({services.runs, transaction}, run, toml);
  });
  return json_response(policy_json(policy));
}

Response post_override(Services& services, Exchange& exchange, const Request& request) {
  int64_t run = parse_run_id(request.arguments[0]);
  OverrideRequest asked = from_request<OverrideRequest>(request.body);
  OverrideAccepted accepted;
  audited_write(exchange, services, [&](LedgerTransaction& transaction) {
    accepted = override_run({services.runs, transaction}, run, asked);
  });
  return json_response(to_json(accepted));
}

Response post_end(Services& services, Exchange& exchange, const Request& request) {
  const int64_t run = parse_run_id(request.arguments[0]);
  const EndRequest asked = from_request<EndRequest>(request.body);
  audited_write(exchange, services, [&](LedgerTransaction& transaction) {
    end_run({services.runs, transaction}, run, asked);
  });
  return {204, "", "", {}, false};
}

}  // namespace

std::vector<Route> policy_routes(Services& s) {
  return {
      {"GET",
       "/v1/runs/{run}/policy",
       {},
       [](Exchange& e, const Request& request) { return show_policy(e, request); }},
      {"PUT",
       "/v1/runs/{run}/policy",
       {BodyKind::kToml, kBodyMax},
       [&s](Exchange& e, const Request& request) { return put_policy(s, e, request); }},
      {"POST", "/v1/runs/{run}/overrides", body_of<OverrideRequest>(kBodyMax),
       [&s](Exchange& e, const Request& request) { return post_override(s, e, request); }},
      {"POST", "/v1/runs/{run}/end", body_of<EndRequest>(16 << 10),
       [&s](Exchange& e, const Request& request) { return post_end(s, e, request); }},
  };
}

std::vector<Route> policy_check_routes(Services&) {
  return {
      {"POST",
       "/v1/policy/check",
       {BodyKind::kToml, kBodyMax},
       [](Exchange&, const Request& request) {
         return json_response(policy_json(policy_of(toml_of(request))));
       }},
  };
}

}  // namespace gnomon
