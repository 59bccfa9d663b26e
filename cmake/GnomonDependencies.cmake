# Everything we use that others wrote, found here and nowhere else. scripts/packages.txt has
# the Debian names; CUDA is used where it is found and never required.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(OpenSSL REQUIRED)
find_package(Boost 1.81 REQUIRED COMPONENTS context json)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
# Debian's dnnl-config.cmake insists on OpenCL's headers, which our CPU-only use never touches.
find_library(DNNL_LIBRARY dnnl REQUIRED)
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp REQUIRED)
add_library(DNNL::dnnl SHARED IMPORTED)
set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
  INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
find_package(SQLiteCpp REQUIRED)
find_package(prometheus-cpp REQUIRED COMPONENTS core)
pkg_check_modules(SQLITE3 REQUIRED IMPORTED_TARGET sqlite3)
pkg_check_modules(TOMLPLUSPLUS REQUIRED IMPORTED_TARGET tomlplusplus)
pkg_check_modules(SENTENCEPIECE REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
# Several ranks are for builds with MPI; a build without it trains in one process.
find_package(MPI QUIET COMPONENTS C)
if(NOT MPI_C_FOUND)
  message(STATUS "MPI not found: training in one process only")
endif()
if(GNOMON_BUILD_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

include(CheckLanguage)
check_language(CUDA)
find_package(CUDAToolkit QUIET)
if(CMAKE_CUDA_COMPILER AND TARGET CUDA::cublasLt AND TARGET CUDA::cudart_static)
  set(GNOMON_CUDA_FOUND ON)
  # Ampere, which has no FP8; Hopper with its own instructions, which no later device has; and what a later driver makes
  # code of.
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 90-virtual CACHE STRING "What device code is made for")
  enable_language(CUDA)
  # CMake 3.25 takes CUDA 13 for a compiler without C++20.
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  # Named once more, /usr/include hides what the host's compiler puts before it.
  list(APPEND CMAKE_CUDA_IMPLICIT_INCLUDE_DIRECTORIES ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})
  message(STATUS "CUDA found: ${CMAKE_CUDA_COMPILER}")
else()
  set(GNOMON_CUDA_FOUND OFF)
  message(STATUS "CUDA not found: building the CPU backend only")
endif()
