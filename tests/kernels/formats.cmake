# The codec against references that are not ours: goldens made by ml_dtypes, and CUDA's own headers where they are.
find_package(ZLIB REQUIRED)
gnomon_test(kernels_formats_golden_test SOURCES formats_golden_test.cc
  LIBS gnomon_kernels fmt::fmt ZLIB::ZLIB LABELS kernels)
target_compile_definitions(kernels_formats_golden_test PRIVATE GNOMON_GOLDEN_DIR="${CMAKE_SOURCE_DIR}/tests/golden")

find_package(CUDAToolkit QUIET)
find_path(GNOMON_CUDA_FP4_INCLUDE_DIR cuda_fp4.h HINTS ${CUDAToolkit_INCLUDE_DIRS} /usr/local/cuda/include)
if(GNOMON_CUDA_FP4_INCLUDE_DIR)
  gnomon_test(kernels_formats_cuda_test SOURCES formats_cuda_test.cc LIBS gnomon_kernels fmt::fmt LABELS kernels)
  target_include_directories(kernels_formats_cuda_test SYSTEM PRIVATE ${GNOMON_CUDA_FP4_INCLUDE_DIR})
else()
  message(STATUS "cuda_fp4.h not found: the codec is not compared with CUDA's host conversions")
endif()
