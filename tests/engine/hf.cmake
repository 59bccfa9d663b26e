# The engine against transformers, from golden values (tests/golden).
foreach(subject hf_export hf_golden hf_import)
  gnomon_test(engine_${subject}_test SOURCES ${subject}_test.cc LIBS gnomon_engine_test_support Boost::json LABELS engine)
  target_compile_definitions(engine_${subject}_test PRIVATE
    GNOMON_GOLDEN_DIRECTORY="${CMAKE_SOURCE_DIR}/tests/golden")
endforeach()
