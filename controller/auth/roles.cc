#include "controller/auth/roles.h"

#include <array>

namespace gnomon {
namespace {

constexpr std::array kRoles = {Role::kReader, Role::kTrainer, Role::kVerifier, Role::kOperator,
                               Role::kAdmin};

}  // namespace

bool may(Role role, Access access) {
  if (role == Role::kAdmin) return true;
  switch (access) {
    case Access::kOpen:
    case Access::kRead:
      return true;
    case Access::kTrain:
      return role == Role::kTrainer;
    case Access::kVerify:
      return role == Role::kVerifier || role == Role::kTrainer;
    case Access::kOperate:
      return role == Role::kOperator;
    case Access::kAdminister:
      return false;
  }
  return false;
}

const std::vector<std::string>& role_names() {
  static const std::vector<std::string> names = {"reader", "trainer", "verifier", "operator",
                                                 "admin"};
  return names;
}

std::string role_name(Role role) { return role_names()[static_cast<size_t>(role)]; }

std::optional<Role> role_from_name(std::string_view name) {
  for (Role role : kRoles) {
    if (role_name(role) == name) return role;
  }
  return std::nullopt;
}

std::string roles_with(Access access) {
  std::string text;
  for (Role role : kRoles) {
    if (may(role, access)) text += (text.empty() ? "" : " or ") + role_name(role);
  }
  return text;
}

std::string access_name(Access access) {
  constexpr std::array kNames = {"open", "read", "train", "verify", "operate", "administer"};
  return kNames[static_cast<size_t>(access)];
}

}  // namespace gnomon
