// What of the environment is in a fingerprint.
#include "trainer/engine/fingerprint.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <map>

#include "protocol/text.h"

namespace gnomon {
namespace {

std::string variables_of(const std::map<std::string, std::string>& environment) {
  std::vector<std::string> names;
  for (const auto& [name, value] : environment) names.push_back(name);
  return computing_variables(names, [&](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(ComputingVariables, AreThoseThatChooseKernels) {
  EXPECT_EQ(variables_of({{"HOME", "/"}, {"RANK", "1"}, {"OMP_WAIT_POLICY", "passive"}}), "");
  EXPECT_EQ(variables_of({{"ONEDNN_VERBOSE", "1"}, {"CUDNN_LOGLEVEL_DBG", "3"}}), "");
  EXPECT_EQ(variables_of({{"ONEDNN_MAX_CPU_ISA", "AVX2"}, {"GNOMON_ATTENTION", "own"}}),
            "GNOMON_ATTENTION=own, ONEDNN_MAX_CPU_ISA=AVX2");
  EXPECT_EQ(variables_of({{"GLIBC_TUNABLES", "glibc.malloc.arena_max=1"}}), "");
  EXPECT_EQ(variables_of({{"GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2"}}),
            "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2");
  for (const char* name :
       {"GNOMON_GRAPHS", "DNNL_CPU_ISA_HINTS", "ONEDNN_DEFAULT_FPMATH_MODE", "NVIDIA_TF32_OVERRIDE",
        "CUBLAS_WORKSPACE_CONFIG", "OMP_DYNAMIC", "OMP_THREAD_LIMIT"}) {
    EXPECT_EQ(variables_of({{name, "x"}}), std::string(name) + "=x");
  }
}

TEST(ProcessFingerprint, FitsAMessageWhateverTheVariablesHold) {
  const auto backend = make_cpu_backend<bf16>(1);
  const Fingerprint usual = process_fingerprint(*backend);
  std::string texts[2];
  for (int last : {0, 1}) {
    const std::string value = std::string(5000, 'x') + "\n\x1b" + std::to_string(last);
    ASSERT_EQ(::setenv("ONEDNN_SOMETHING", value.c_str(), 1), 0);
    const Fingerprint found = process_fingerprint(*backend);
    EXPECT_NE(found, usual);
    EXPECT_TRUE(is_one_line(found.libraries)) << found.libraries;
    EXPECT_LE(found.libraries.size(), kLibrariesBytesMax);
    texts[last] = found.libraries;
  }
  ::unsetenv("ONEDNN_SOMETHING");
  EXPECT_NE(texts[0], texts[1]) << "what is not shown counts too";
  EXPECT_EQ(process_fingerprint(*backend), usual);
}

}  // namespace
}  // namespace gnomon
