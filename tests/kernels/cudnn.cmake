# cuDNN without a device, where its headers are.
if(TARGET gnomon_cuda AND GNOMON_CUDNN_INCLUDE_DIR)
  # gnomon_stand_in(name, soname, sources...): a library by the name of another, to be opened before that one is.
  function(gnomon_stand_in name soname)
    add_library(${name} MODULE ${ARGN})
    set_target_properties(${name} PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}
      LINK_OPTIONS LINKER:-soname,${soname})
    target_include_directories(${name} SYSTEM PRIVATE ${GNOMON_CUDNN_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
  endfunction()
  gnomon_stand_in(gnomon_fake_driver libcuda.so.1 fake_driver.c)
  gnomon_stand_in(gnomon_fake_cudnn libcudnn.so.9 fake_cudnn.cc)
  target_link_libraries(gnomon_fake_cudnn PRIVATE gnomon_options)
  gnomon_stand_in(gnomon_empty_cudnn libcudnn.so.9 ${CMAKE_SOURCE_DIR}/tests/base/module.cc)

  # The real library, which is found, or not, when the test runs; sanitizers would look into it.
  if(NOT GNOMON_SANITIZE)
    gnomon_test_program(cudnn_plans_test ONE_SHARD LABELS nightly COST 30)
    gnomon_tests(cudnn_plans_test SOURCES cudnn_plans_test.cc LIBS gnomon_cuda gnomon_device_checks ${CMAKE_DL_LIBS}
      DEFINITIONS GNOMON_FAKE_DRIVER="$<TARGET_FILE:gnomon_fake_driver>" NEEDS gnomon_fake_driver)
  endif()

  # What calls the library, beside our own attention by emulation.
  gnomon_library(gnomon_cudnn_emulated)
  foreach(subject attention_choice cudnn cudnn_attention cudnn_plan)
    target_sources(gnomon_cudnn_emulated PRIVATE ${CMAKE_SOURCE_DIR}/kernels/cuda/${subject}.cc)
  endforeach()
  target_include_directories(gnomon_cudnn_emulated SYSTEM PUBLIC ${GNOMON_CUDNN_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
  target_compile_definitions(gnomon_cudnn_emulated PRIVATE GNOMON_CUDNN_FOUND GNOMON_CUDA_LIBRARY_FOLDER="${CUDAToolkit_LIBRARY_DIR}")
  target_link_libraries(gnomon_cudnn_emulated PUBLIC gnomon_cuda_emulated fmt::fmt ${CMAKE_DL_LIBS})
  # A process has one cuDNN: the library's stand-in, and one that lacks what we call, have a program each.
  gnomon_test_program(cudnn_test ONE_SHARD COST 5)
  gnomon_tests(cudnn_test SOURCES cudnn_attention_test.cc LIBS gnomon_cudnn_emulated gnomon_device_checks
    DEFINITIONS GNOMON_FAKE_CUDNN="$<TARGET_FILE:gnomon_fake_cudnn>" NEEDS gnomon_fake_cudnn)
  gnomon_test_program(cudnn_missing_test ONE_SHARD)
  gnomon_tests(cudnn_missing_test SOURCES cudnn_missing_test.cc LIBS gnomon_cudnn_emulated
    DEFINITIONS GNOMON_EMPTY_CUDNN="$<TARGET_FILE:gnomon_empty_cudnn>" NEEDS gnomon_empty_cudnn)
endif()
