# The target `bundle`: our programs with every library that is not the C library, the driver's or the toolkit's, in one file
# that runs from any folder of another host. scripts/bundle makes it, in a build of its own for other processors too.
get_property(bundled GLOBAL PROPERTY GNOMON_BUNDLED)
list(TRANSFORM bundled REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE bundled_files)
add_custom_target(bundle COMMAND ${CMAKE_SOURCE_DIR}/scripts/bundle VERBATIM USES_TERMINAL)
# What that build is asked for, and the list of it.
add_custom_target(bundled DEPENDS ${bundled} gnomon_web)
list(JOIN bundled_files "\n" bundled_lines)
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/bundled-programs.txt CONTENT "${bundled_lines}\n")

# The test packs what is built here and runs it elsewhere.
if(GNOMON_BUILD_TESTS AND NOT GNOMON_SANITIZE)
  gnomon_check(bundle LABELS nightly NEEDS bundled COMMAND ${CMAKE_SOURCE_DIR}/tests/bundle/check ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/web ${bundled_files})
  set_tests_properties(bundle PROPERTIES TIMEOUT 300)
endif()
