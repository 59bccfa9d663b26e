# What ctest runs. tests/CMakeLists.txt lists the programs; each room adds its files to them.

# gnomon_test_headers(name optimisation): GoogleTest's headers, compiled once.
function(gnomon_test_headers name optimisation)
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc "")
  add_library(${name} OBJECT ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
  target_link_libraries(${name} PRIVATE gnomon_options GTest::gmock fmt::fmt)
  target_precompile_headers(${name} PRIVATE <gmock/gmock.h> <gtest/gtest.h> <chrono> <filesystem> <fstream> <functional>
    <map> <memory> <optional> <string> <thread> <vector>
    ${CMAKE_SOURCE_DIR}/tests/support/words.h)
  target_compile_options(${name} PRIVATE ${optimisation} $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endfunction()

# gnomon_test_program(name [COMPUTES] [ONE_SHARD] [LABELS ...] [COST s] [QUICK pattern] [NIGHTLY patterns...]): a GoogleTest program. ctest runs it twice,
# each time half of its cases. One that COMPUTES is optimised. COST is how long one such half takes, and the longest go first. Of a program with the label
# `quick` QUICK says which cases are; NIGHTLY says which are left to the night.
function(gnomon_test_program name)
  cmake_parse_arguments(ARG "COMPUTES;ONE_SHARD" "COST;QUICK" "LABELS;NIGHTLY" ${ARGN})
  list(JOIN ARG_NIGHTLY ":" ARG_NIGHTLY)
  add_executable(${name})
  target_link_libraries(${name} PRIVATE gnomon_options GTest::gmock GTest::gtest_main fmt::fmt)
  set(headers gnomon_test_headers)
  set(optimisation -O0)
  if(ARG_COMPUTES)
    set(headers gnomon_computing_test_headers)
    set(optimisation -O1)
  endif()
  target_precompile_headers(${name} REUSE_FROM ${headers})
  target_compile_options(${name} PRIVATE ${optimisation} $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  gnomon_compile_together(${name})
  set(shards 2)
  if(ARG_ONE_SHARD)
    set(shards 1)
  endif()
  foreach(shard RANGE 1 ${shards})
    set(test ${name}.${shard}of${shards})
    math(EXPR index "${shard} - 1")
    add_test(NAME ${test} COMMAND ${name} --gtest_output=xml:${CMAKE_BINARY_DIR}/test-results/${test}.xml)
    set(environment GTEST_TOTAL_SHARDS=${shards} GTEST_SHARD_INDEX=${index})
    if(GNOMON_SANITIZE MATCHES "thread")
      set(options "halt_on_error=1:suppressions=${CMAKE_SOURCE_DIR}/cmake/thread_sanitizer.supp")
      if(GNOMON_OPENMP_IS_FOLLOWED)
        string(APPEND options ":ignore_noninstrumented_modules=1")
      endif()
      list(APPEND environment "TSAN_OPTIONS=${options}")
    endif()
    set_tests_properties(${test} PROPERTIES ENVIRONMENT "${environment}" TIMEOUT 900 LABELS "${ARG_LABELS}")
    if(ARG_COST)
      set_tests_properties(${test} PROPERTIES COST ${ARG_COST})
    endif()
  endforeach()
  set_property(GLOBAL APPEND PROPERTY GNOMON_TEST_PROGRAMS ${name})
  set_target_properties(${name} PROPERTIES GNOMON_LABELS "${ARG_LABELS}" GNOMON_QUICK "${ARG_QUICK}" GNOMON_NIGHTLY "${ARG_NIGHTLY}" GNOMON_SHARDS ${shards})
endfunction()

# gnomon_tests(program SOURCES ... [LIBS ...] [DEFINITIONS ...] [NEEDS target...]): files of this room for a program, and
# what they are built with. NEEDS names programs that they start.
function(gnomon_tests program)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS;DEFINITIONS;NEEDS" ${ARGN})
  list(TRANSFORM ARG_SOURCES PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  target_sources(${program} PRIVATE ${ARG_SOURCES})
  target_link_libraries(${program} PRIVATE ${ARG_LIBS})
  target_compile_definitions(${program} PRIVATE ${ARG_DEFINITIONS})
  if(ARG_NEEDS)
    add_dependencies(${program} ${ARG_NEEDS})
  endif()
endfunction()

# gnomon_check(name COMMAND ... [NEEDS target...] [LABELS ...]): another test of ctest's. NEEDS names what it runs, so that
# it can be built for this test alone.
function(gnomon_check name)
  cmake_parse_arguments(ARG "" "" "COMMAND;NEEDS;LABELS" ${ARGN})
  add_test(NAME ${name} COMMAND ${ARG_COMMAND})
  set_tests_properties(${name} PROPERTIES TIMEOUT 120 LABELS "${ARG_LABELS}")
  gnomon_json_list(labels ${ARG_LABELS})
  gnomon_json_list(needs ${ARG_NEEDS})
  set_property(GLOBAL APPEND_STRING PROPERTY GNOMON_TESTS_FILE
    "{\"kind\": \"check\", \"name\": \"${name}\", \"labels\": ${labels}, \"needs\": ${needs}}\n")
endfunction()

function(gnomon_json_list out)
  list(JOIN ARGN "\", \"" joined)
  if(ARGN)
    set(joined "\"${joined}\"")
  endif()
  set(${out} "[${joined}]" PARENT_SCOPE)
endfunction()

# gnomon_write_tests(): tests.jsonl, from which scripts/test knows what it has to build for a test.
function(gnomon_write_tests)
  get_property(lines GLOBAL PROPERTY GNOMON_TESTS_FILE)
  get_property(programs GLOBAL PROPERTY GNOMON_TEST_PROGRAMS)
  foreach(program IN LISTS programs)
    foreach(property LABELS QUICK NIGHTLY SHARDS)
      get_target_property(${property} ${program} GNOMON_${property})
    endforeach()
    get_target_property(sources ${program} SOURCES)
    gnomon_json_list(labels ${LABELS})
    gnomon_json_list(sources ${sources})
    string(APPEND lines "{\"kind\": \"program\", \"name\": \"${program}\", \"labels\": ${labels}, \"quick\": \"${QUICK}\", \"nightly\": \"${NIGHTLY}\", "
      "\"shards\": ${SHARDS}, \"sources\": ${sources}}\n")
  endforeach()
  file(WRITE ${CMAKE_BINARY_DIR}/tests.jsonl "${lines}")
endfunction()

# gnomon_device_test(name SOURCES ... LIBS ...): a GoogleTest program for a GPU, which is one test and skipped where there
# is none. scripts/gpu-check runs it on a machine that has one.
function(gnomon_device_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES} ${CMAKE_SOURCE_DIR}/tests/support/device_main.cc)
  target_link_libraries(${name} PRIVATE gnomon_options ${ARG_LIBS} GTest::gmock GTest::gtest)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  gnomon_bundled(${name})
  gnomon_check(${name} COMMAND ${name} NEEDS ${name} LABELS device nightly)
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 3 TIMEOUT 600)
endfunction()
