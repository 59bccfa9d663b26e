# The target `bundle`: our programs with every library that is not the C library, the driver's or the toolkit's, in one file
# that runs from any folder of another host (scripts/bundle says what it needs there).
get_property(bundled GLOBAL PROPERTY GNOMON_BUNDLED)
list(TRANSFORM bundled REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE bundled_files)
set(bundle_file ${CMAKE_BINARY_DIR}/gnomon-bundle.tar.gz)
set(pack ${CMAKE_SOURCE_DIR}/scripts/bundle --out ${bundle_file} --web ${CMAKE_BINARY_DIR}/web
  --revision-from ${CMAKE_SOURCE_DIR} --arch ${GNOMON_ARCH})

# What this build has, for whatever processor that is.
add_custom_target(bundle_of_this_build COMMAND ${pack} ${bundled_files} DEPENDS ${bundled} gnomon_web VERBATIM USES_TERMINAL)

if(NOT GNOMON_ARCH STREQUAL "native")
  add_custom_target(bundle DEPENDS bundle_of_this_build)
else()
  # A build for this very processor does not travel: another one is made beside it.
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(GNOMON_BUNDLE_ARCH x86-64-v4 CACHE STRING "GNOMON_ARCH of the bundle")
  else()
    set(GNOMON_BUNDLE_ARCH armv8.2-a CACHE STRING "GNOMON_ARCH of the bundle")
  endif()
  set(portable ${CMAKE_BINARY_DIR}/portable)
  add_custom_target(bundle
    COMMAND ${CMAKE_COMMAND} -S ${CMAKE_SOURCE_DIR} -B ${portable} -G Ninja -DCMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE}
      "-DCMAKE_CXX_FLAGS_RELEASE=${CMAKE_CXX_FLAGS_RELEASE}" -DGNOMON_ARCH=${GNOMON_BUNDLE_ARCH}
    COMMAND ${CMAKE_COMMAND} --build ${portable} --target bundle
    COMMAND ${CMAKE_COMMAND} -E copy ${portable}/gnomon-bundle.tar.gz ${bundle_file}
    VERBATIM USES_TERMINAL)
endif()

# The test packs what is built here and runs it elsewhere.
if(GNOMON_BUILD_TESTS AND NOT GNOMON_SANITIZE)
  add_test(NAME bundle COMMAND ${CMAKE_SOURCE_DIR}/tests/bundle/check ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/web ${bundled_files})
  set_tests_properties(bundle PROPERTIES TIMEOUT 300)
endif()
