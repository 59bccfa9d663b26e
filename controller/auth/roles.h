// Who may do what. One table, which docs/security.md shows.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gnomon {

// What a token is for. Each may read everything that is on record.
enum class Role {
  kReader,    // looks: people, Prometheus, dashboards
  kTrainer,   // reports runs and takes directives; leases replays too, for inline verification
  kVerifier,  // leases replays
  kOperator,  // overrides, policies
  kAdmin,     // all of these, backups, deletions
};

// What a route asks of whoever comes.
enum class Access {
  kOpen,    // nothing: health and the page's own files
  kRead,    // any token
  kTrain,   // trainer
  kVerify,  // verifier, trainer
  kOperate,
  kAdminister,
};

bool may(Role role, Access access);

// "reader", "trainer", "verifier", "operator", "admin".
std::string role_name(Role role);
std::optional<Role> role_from_name(std::string_view name);
const std::vector<std::string>& role_names();
// The roles that have this access, for a refusal: "operator or admin".
std::string roles_with(Access access);
// "open", "read", "train", "verify", "operate", "administer", as in the API's document.
std::string access_name(Access access);

}  // namespace gnomon
