# Build switches, warnings and sanitizers, kept in one place. Our own targets link
# gnomon_options; third-party headers are SYSTEM and not held to our warnings.
option(GNOMON_BUILD_TESTS "Build the tests" ON)
option(GNOMON_WITH_CUDA "Build the CUDA backend where the toolkit is found" ON)
set(GNOMON_SANITIZE "" CACHE STRING "Comma separated list for -fsanitize=, e.g. address,undefined")
set(GNOMON_ARCH "native" CACHE STRING "Value of -march=; x86-64-v4 for binaries that move between hosts")

add_library(gnomon_options INTERFACE)
target_include_directories(gnomon_options INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
# GCC collects garbage at every turn unless it is told that there is memory.
target_compile_options(gnomon_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1048576>)
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
set(GNOMON_UNITY 1 CACHE STRING "How many sources of a library or test program are compiled together, at most")
if(GNOMON_UNITY GREATER 1 AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC takes a source that is included for a header.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()

function(gnomon_compile_together target)
  if(GNOMON_UNITY GREATER 1)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${GNOMON_UNITY})
  endif()
endfunction()

# gnomon_device_code(target sources...): device code of this folder, four files together. CMake 3.25 does so for C++ alone.
function(gnomon_device_code target)
  if(NOT GNOMON_UNITY GREATER 1)
    target_sources(${target} PRIVATE ${ARGN})
    return()
  endif()
  file(RELATIVE_PATH room ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  set(number 0)
  while(ARGN)
    list(SUBLIST ARGN 0 4 sources)
    list(REMOVE_ITEM ARGN ${sources})
    list(TRANSFORM sources REPLACE "(.+)" "#include \"${room}/\\1\"\n")
    list(JOIN sources "" text)
    set(together ${CMAKE_CURRENT_BINARY_DIR}/device_code_${number}.cu)
    file(CONFIGURE OUTPUT ${together} CONTENT "${text}" @ONLY)
    target_sources(${target} PRIVATE ${together})
    math(EXPR number "${number} + 1")
  endwhile()
endfunction()

# gnomon_library(name sources...): one of our static libraries.
function(gnomon_library name)
  add_library(${name} STATIC ${ARGN})
  target_link_libraries(${name} PUBLIC gnomon_options)
  gnomon_compile_together(${name})
endfunction()

# gnomon_executable(name sources...): one of our programs, in bin/.
# It reads a command line; what takes time is in the libraries.
function(gnomon_executable name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE gnomon_options)
  gnomon_cold(${name})
  gnomon_compile_together(${name})
endfunction()

# gnomon_numeric(target): a library whose loops are worth the compiler's time. gnomon_cold(target): one that waits for others.
set(GNOMON_COLD "-O1" CACHE STRING "How far what waits for others is optimised in a release")
function(gnomon_numeric target)
  target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O3>)
endfunction()
function(gnomon_cold target)
  target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:${GNOMON_COLD}>)
endfunction()

# gnomon_bundled(target): a program that travels in the bundle (cmake/GnomonBundle.cmake), and so finds its libraries, and
# theirs, from where it lies. RUNPATH, which linkers write today, would not serve for theirs.
function(gnomon_bundled target)
  set_target_properties(${target} PROPERTIES BUILD_RPATH "$ORIGIN/../lib")
  target_link_options(${target} PRIVATE LINKER:--disable-new-dtags)
  set_property(GLOBAL APPEND PROPERTY GNOMON_BUNDLED ${target})
endfunction()
