#include "storage/safetensors_directory.h"

#include <gmock/gmock.h>

#include <cstring>

#include "base/errors.h"
#include "base/files.h"
#include "tests/storage/test_files.h"

namespace gnomon {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kIndex = "model.safetensors.index.json";

class SafetensorsDirectoryTest : public testing::Test {
 protected:
  void put_file(const std::string& name, const std::vector<std::string>& tensors) {
    std::vector<TensorView> views;
    for (const std::string& tensor : tensors) views.push_back({tensor, "F32", {2}, values_});
    write_safetensors(folder_ / name, views);
  }
  void put_index(const std::string& map) {
    put(folder_ / kIndex, R"({"metadata":{"total_size":1},"weight_map":)" + map + "}");
  }
  std::string error() {
    return message_of<FormatError>([&] { SafetensorsDirectory directory(folder_.path()); });
  }

  const float values_[2] = {1, 2};
  TemporaryDirectory folder_;
};

TEST_F(SafetensorsDirectoryTest, ShardsGiveTheTensorsOfAllFiles) {
  put_file("model-00001-of-00002.safetensors", {"a", "b"});
  put_file("model-00002-of-00002.safetensors", {"c"});
  put_index(R"({"a":"model-00001-of-00002.safetensors","b":"model-00001-of-00002.safetensors",)"
            R"("c":"model-00002-of-00002.safetensors"})");
  SafetensorsDirectory directory(folder_.path());
  EXPECT_EQ(directory.tensors().size(), 3u);
  EXPECT_EQ(directory.bytes(), 24);
  EXPECT_EQ(directory.find("d"), nullptr);
  EXPECT_EQ(directory.find("c")->file, folder_ / "model-00002-of-00002.safetensors");
  EXPECT_EQ(std::memcmp(directory.find("c")->view->data, values_, sizeof values_), 0);
}

TEST_F(SafetensorsDirectoryTest, OneFileIsTakenAndAnIndexBesideItNotRead) {
  put_file("model.safetensors", {"a"});
  put(folder_ / kIndex, "no JSON");
  EXPECT_THAT(SafetensorsDirectory(folder_.path()).files(), ElementsAre("model.safetensors"));
}

TEST_F(SafetensorsDirectoryTest, ADirectoryWithoutWeightsSaysWhatIsWanted) {
  put(folder_ / "pytorch_model.bin", "x");
  EXPECT_THAT(error(), AllOf(HasSubstr(folder_.path().string()), HasSubstr("model.safetensors or"),
                             HasSubstr(kIndex)));
  EXPECT_THROW(SafetensorsDirectory(folder_ / "nothing"), SystemError);
  EXPECT_THROW(SafetensorsDirectory(folder_ / "pytorch_model.bin"), SystemError);
}

TEST_F(SafetensorsDirectoryTest, AnIndexThatIsNoneIsRefused) {
  for (const char* text : {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})",
                           R"({"weight_map":{"a":"x.safetensors","a":"x.safetensors"}})"}) {
    put(folder_ / kIndex, text);
    EXPECT_THAT(error(), HasSubstr((folder_ / kIndex).string())) << text;
  }
}

TEST_F(SafetensorsDirectoryTest, AnIndexNamesOnlyFilesBesideItThatAreThere) {
  put_file("w.safetensors", {"a"});
  put_file("sub.safetensors", {"a"});
  std::filesystem::create_directories(folder_ / "d");
  std::filesystem::create_directories(folder_ / "e.safetensors");
  std::filesystem::copy(folder_ / "w.safetensors", folder_ / "d/w.safetensors");
  const std::string outside = folder_ / "w.safetensors";
  for (const std::string& file :
       {std::string("absent.safetensors"), std::string("d/w.safetensors"),
        std::string("d/../w.safetensors"), outside, std::string(".."), std::string(""),
        std::string("w.bin"), std::string("e.safetensors")}) {
    put_index("{\"a\":\"" + file + "\"}");
    EXPECT_THAT(error(), AllOf(HasSubstr(kIndex), HasSubstr("tensor \"a\" in \"" + file + "\"")));
  }
  put_index(R"({"a":7})");
  EXPECT_THAT(error(), HasSubstr("tensor \"a\" in 7"));
}

TEST_F(SafetensorsDirectoryTest, IndexAndFilesMustAgree) {
  put_file("x.safetensors", {"a", "b"});
  put_file("y.safetensors", {"c"});
  put_index(R"({"a":"x.safetensors","c":"y.safetensors"})");
  EXPECT_THAT(error(), AllOf(HasSubstr("x.safetensors"), HasSubstr("tensor \"b\"")));
  put_index(R"({"a":"x.safetensors","b":"x.safetensors","c":"y.safetensors","d":"y.safetensors"})");
  EXPECT_THAT(error(), AllOf(HasSubstr(kIndex), HasSubstr("tensor \"d\" in \"y.safetensors\"")));
  put_index(R"({"a":"x.safetensors","b":"y.safetensors","c":"y.safetensors"})");
  EXPECT_THAT(error(), AllOf(HasSubstr("tensor \"b\" in \"y.safetensors\""),
                             HasSubstr("x.safetensors, where it is")));
}

TEST_F(SafetensorsDirectoryTest, ATensorInTwoFilesIsRefused) {
  put_file("x.safetensors", {"a", "b"});
  put_file("y.safetensors", {"b"});
  put_index(R"({"a":"x.safetensors","b":"y.safetensors"})");
  EXPECT_THAT(error(), AllOf(HasSubstr("y.safetensors"), HasSubstr("tensor \"b\""),
                             HasSubstr("x.safetensors, which has one")));
}

TEST_F(SafetensorsDirectoryTest, ADamagedShardIsNamed) {
  put_file("x.safetensors", {"a"});
  put(folder_ / "x.safetensors", read_file(folder_ / "x.safetensors") + "more");
  put_index(R"({"a":"x.safetensors"})");
  EXPECT_THAT(error(), HasSubstr("x.safetensors: at byte"));
}

TEST_F(SafetensorsDirectoryTest, WritesOneFileUpToTheBoundAndShardsAboveIt) {
  std::vector<TensorView> tensors;
  for (const char* name : {"a", "b", "c", "d", "e"}) tensors.push_back({name, "F32", {2}, values_});
  EXPECT_THAT(write_safetensors_directory(folder_.path(), tensors, 40),
              ElementsAre("model.safetensors"));
  EXPECT_EQ(SafetensorsDirectory(folder_.path()).bytes(), 40);

  TemporaryDirectory shards;
  EXPECT_THAT(
      write_safetensors_directory(shards.path(), tensors, 39),
      ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", kIndex));
  SafetensorsDirectory read(shards.path());
  EXPECT_EQ(read.tensors().size(), 5u);
  EXPECT_EQ(read.find("d")->file, shards / "model-00001-of-00002.safetensors");
  EXPECT_EQ(read.find("e")->file, shards / "model-00002-of-00002.safetensors");
  EXPECT_THAT(read_file(shards / kIndex), HasSubstr("\"total_size\":40"));

  TemporaryDirectory single;  // each tensor alone is above the bound
  EXPECT_EQ(write_safetensors_directory(single.path(), tensors, 1).size(), 6u);
  EXPECT_EQ(SafetensorsDirectory(single.path()).files().size(), 5u);
}

}  // namespace
}  // namespace gnomon
