# Run by every build: writes ${OUT} with the revision of ${SOURCE}, and only when that has changed.
execute_process(COMMAND git describe --always --dirty --abbrev=12 --exclude=* WORKING_DIRECTORY ${SOURCE}
  OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT revision)
  set(revision unknown)
endif()
set(content "// Written by base/revision.cmake.
#include \"base/version.h\"

const char* const gnomon::kRevision = \"${revision}\";
")
set(known "")
if(EXISTS ${OUT})
  file(READ ${OUT} known)
endif()
if(NOT known STREQUAL content)
  file(WRITE ${OUT} "${content}")
endif()
