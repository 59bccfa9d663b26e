# Build switches, warnings and sanitizers, kept in one place. Our own targets link
# gnomon_options; third-party headers are SYSTEM and not held to our warnings.
option(GNOMON_BUILD_TESTS "Build the tests" ON)
set(GNOMON_SANITIZE "" CACHE STRING "Comma separated list for -fsanitize=, e.g. address,undefined")
set(GNOMON_ARCH "native" CACHE STRING "Value of -march=; x86-64-v4 for binaries that move between hosts")

add_library(gnomon_options INTERFACE)
target_include_directories(gnomon_options INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
target_compile_options(gnomon_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:
  -march=${GNOMON_ARCH} -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  -Wnon-virtual-dtor -Woverloaded-virtual -Werror>
  # Functions of the host that a constant expression may call, a kernel may call too.
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -Werror=all-warnings>)

if(GNOMON_SANITIZE)
  target_compile_options(gnomon_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:
    -fsanitize=${GNOMON_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
    # GCC's flow analysis misjudges instrumented code (std::regex, std::optional).
    -Wno-maybe-uninitialized>)
  if(GNOMON_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Boost.Asio has fences; the thread sanitizer does not see them, and locks do the ordering there.
    target_compile_options(gnomon_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-tsan>)
  endif()
  target_link_options(gnomon_options INTERFACE -fsanitize=${GNOMON_SANITIZE})
endif()
# LLVM's OpenMP tells the thread sanitizer what its threads wait for (by the tool Archer, which it loads by itself);
# libgomp does not.
if(GNOMON_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(GNOMON_OPENMP_IS_FOLLOWED ON)
  # It overlooks loads and stores of more than 16 bytes.
  target_compile_options(gnomon_options INTERFACE -mprefer-vector-width=128)
endif()

find_program(GNOMON_CCACHE ccache)
if(GNOMON_CCACHE)
  # What it asks for where headers are precompiled (the tests').
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${GNOMON_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${GNOMON_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${GNOMON_CCACHE})
endif()
find_program(GNOMON_MOLD mold)
if(GNOMON_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# Most of a build is the reading of headers. Sources that are compiled together read them once.
option(GNOMON_UNITY "Compile up to eight sources of a library together; some of cli and the tests do not build so yet (docs/roadmap.md)" OFF)
if(GNOMON_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC takes a source that is included for a header.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()

# gnomon_library(name sources...): one of our static libraries.
function(gnomon_library name)
  add_library(${name} STATIC ${ARGN})
  target_link_libraries(${name} PUBLIC gnomon_options)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${GNOMON_UNITY} UNITY_BUILD_BATCH_SIZE 8)
endfunction()

# gnomon_executable(name sources...): one of our programs, in bin/.
function(gnomon_executable name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE gnomon_options)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${GNOMON_UNITY} UNITY_BUILD_BATCH_SIZE 8)
endfunction()

# gnomon_bundled(target): a program that travels in the bundle (cmake/GnomonBundle.cmake), and so finds its libraries, and
# theirs, from where it lies. RUNPATH, which linkers write today, would not serve for theirs.
function(gnomon_bundled target)
  set_target_properties(${target} PROPERTIES BUILD_RPATH "$ORIGIN/../lib")
  target_link_options(${target} PRIVATE LINKER:--disable-new-dtags)
  set_property(GLOBAL APPEND PROPERTY GNOMON_BUNDLED ${target})
endfunction()

# gnomon_test_headers(name): GoogleTest's headers, compiled once with the options of this directory, for the tests of this
# directory and below.
function(gnomon_test_headers name)
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc "")
  add_library(${name} OBJECT ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
  target_link_libraries(${name} PRIVATE gnomon_options GTest::gmock)
  target_precompile_headers(${name} PRIVATE <gmock/gmock.h> <gtest/gtest.h> <chrono> <filesystem> <fstream> <functional>
    <map> <memory> <optional> <string> <thread> <vector>)
  target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  set(GNOMON_TEST_HEADERS ${name} PARENT_SCOPE)
endfunction()

# gnomon_test(name SOURCES ... LIBS ... [LABELS ...] [TIMEOUT s]): a GoogleTest program whose cases are
# found when ctest runs, so that every case is counted.
function(gnomon_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE gnomon_options ${ARG_LIBS} GTest::gmock GTest::gtest_main)
  target_precompile_headers(${name} REUSE_FROM ${GNOMON_TEST_HEADERS})
  target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set(environment)
  if(GNOMON_SANITIZE MATCHES "thread")
    set(options "halt_on_error=1:suppressions=${CMAKE_SOURCE_DIR}/cmake/thread_sanitizer.supp")
    if(GNOMON_OPENMP_IS_FOLLOWED)
      string(APPEND options ":ignore_noninstrumented_modules=1")
    endif()
    set(environment ENVIRONMENT "TSAN_OPTIONS=${options}")
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 NO_PRETTY_VALUES
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}" ${environment})
endfunction()

# gnomon_device_test(name SOURCES ... LIBS ...): a GoogleTest program for a GPU, which is one test and skipped where there
# is none. scripts/gpu-check runs it on a machine that has one.
function(gnomon_device_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES} ${CMAKE_SOURCE_DIR}/tests/support/device_main.cc)
  target_link_libraries(${name} PRIVATE gnomon_options ${ARG_LIBS} GTest::gmock GTest::gtest)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  gnomon_bundled(${name})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 3 TIMEOUT 600 LABELS device)
endfunction()
