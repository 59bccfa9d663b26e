# The codec against references that are not ours: goldens made by ml_dtypes, and CUDA's own headers where they are.
find_package(ZLIB REQUIRED)
gnomon_tests(kernels_test SOURCES formats_golden_test.cc lion_test.cc
  LIBS fmt::fmt ZLIB::ZLIB DEFINITIONS GNOMON_GOLDEN_DIR="${CMAKE_SOURCE_DIR}/tests/golden")

find_package(CUDAToolkit QUIET)
find_path(GNOMON_CUDA_FP4_INCLUDE_DIR cuda_fp4.h HINTS ${CUDAToolkit_INCLUDE_DIRS} /usr/local/cuda/include)
if(GNOMON_CUDA_FP4_INCLUDE_DIR)
  gnomon_tests(kernels_test SOURCES formats_cuda_test.cc)
  target_include_directories(kernels_test SYSTEM PRIVATE ${GNOMON_CUDA_FP4_INCLUDE_DIR})
else()
  message(STATUS "cuda_fp4.h not found: the codec is not compared with CUDA's host conversions")
endif()
