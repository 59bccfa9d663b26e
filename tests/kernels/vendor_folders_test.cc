#include "kernels/cuda/vendor_folders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace gnomon::cuda {
namespace {

TEST(VendorFolders, AreThoseGivenWithWhatPipPutsBelow) {
  const gnomon::test::TemporaryDirectory directory;
  const std::string root = directory.path().string();
  std::filesystem::create_directories(directory.path() / "cudnn" / "lib");
  std::filesystem::create_directories(directory.path() / "cu13" / "lib");
  std::filesystem::create_directories(directory.path() / "other");
  EXPECT_THAT(folders_of("/absent:" + root + ":"),
              testing::ElementsAre("/absent", root, root + "/cu13/lib", root + "/cudnn/lib"));
  EXPECT_THAT(folders_of(""), testing::IsEmpty());
}

TEST(VendorFolders, OfTheEnvironmentComeFirst) {
  ::setenv("GNOMON_CUDA_LIBRARIES", "/mine", 1);
  EXPECT_EQ(vendor_folders().front(), "/mine");
  ::unsetenv("GNOMON_CUDA_LIBRARIES");
  EXPECT_EQ(vendor_folders().front(), "") << "the loader's own";
}

}  // namespace
}  // namespace gnomon::cuda
