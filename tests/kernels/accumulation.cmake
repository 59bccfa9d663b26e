# The program that compares with a device, where the CUDA toolkit is.
# gnomon_gpu_check(name, status, text in the output, arguments...): devices are hidden, so that the answer is the same
# on a machine that has one.
function(gnomon_gpu_check name status text)
  gnomon_check(gpu_check.${name} NEEDS gnomon-gpu-check LABELS nightly COMMAND
    ${CMAKE_SOURCE_DIR}/tests/support/expect ${status} ${text} $<TARGET_FILE:gnomon-gpu-check> ${ARGN})
  set_tests_properties(gpu_check.${name} PROPERTIES ENVIRONMENT "CUDA_VISIBLE_DEVICES=;OMP_WAIT_POLICY=passive")
endfunction()
if(TARGET gnomon-gpu-check)
  gnomon_gpu_check(without_a_device_says_so 3 "no CUDA device: " accumulation --json)
  gnomon_gpu_check(attention_without_a_device_says_so 3 "no CUDA device: " attention --json)
  gnomon_gpu_check(a_rule_that_is_none_is_named 2 "--pretend = bits=x" accumulation --pretend bits=x)
  gnomon_gpu_check(no_command_is_bad_input 2 "expected one of accumulation, attention" "")
  gnomon_gpu_check(the_default_rules_hold 0 "Every bit is explained by: 32 terms, 13 bits, result 13 bits, promoted every 128"
    accumulation --pretend promote=128 --k-max 256 --sample 16)
  gnomon_gpu_check(other_rules_have_a_status_of_their_own 4 "Every bit is explained by: 16 terms, 14 bits, result 14 bits"
    accumulation --pretend terms=16,bits=14,result=14 --k-max 256 --sample 16)
endif()
