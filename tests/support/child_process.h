// base/child_process.h under the name that tests know.
#pragma once

#include "base/child_process.h"
#include "tests/support/temporary_directory.h"

namespace gnomon::test {

using gnomon::ChildOptions;
using gnomon::ChildProcess;
using gnomon::EndedProcess;
using gnomon::eventually;
using gnomon::run_to_end;

}  // namespace gnomon::test
