// base/temporary_directory.h under the name that tests know.
#pragma once

#include "base/temporary_directory.h"

namespace gnomon::test {

using gnomon::TemporaryDirectory;

}  // namespace gnomon::test
