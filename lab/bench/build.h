// What every benchmark says of where it ran.
#pragma once

#include <fmt/format.h>

#include <boost/json.hpp>

#include "base/version.h"
#include "kernels/backend.h"

namespace gnomon {

inline void add_build(const BackendBase& backend, boost::json::object& result) {
  result["device"] = backend.name();
  result["machine"] = backend.device();
  result["libraries"] = backend.libraries();
  result["threads"] = backend.threads();
  result["build"] = fmt::format("{} ({}, {}, {})", kVersion, kRevision, kBuildType, kCompiler);
}

}  // namespace gnomon
