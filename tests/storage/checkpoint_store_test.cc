#include "storage/checkpoint_store.h"

#include <gmock/gmock.h>

#include <cstring>

#include "base/files.h"
#include "storage/checkpoint_manifest.h"
#include "storage/hashed_file.h"
#include "tests/storage/checkpoint_fixture.h"
#include "tests/storage/test_files.h"

namespace gnomon {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class CheckpointStoreTest : public testing::Test {
 protected:
  CheckpointInfo write(int64_t attempt, int64_t step) {
    return store_.write(attempt, step, SampleContent(step));
  }
  std::vector<std::pair<int64_t, int64_t>> listed() const {
    std::vector<std::pair<int64_t, int64_t>> steps;
    for (const CheckpointInfo& info : store_.list()) steps.emplace_back(info.attempt, info.step);
    return steps;
  }
  // Verifies a checkpoint that must be refused.
  CheckpointError refusal(const std::filesystem::path& path) const {
    try {
      verify_checkpoint(path);
    } catch (const CheckpointError& error) {
      return error;
    }
    ADD_FAILURE() << path << " was accepted";
    return {"", std::nullopt};
  }

  TemporaryDirectory folder_;
  CheckpointStore store_{folder_ / "checkpoints"};
};

using Step = std::pair<int64_t, int64_t>;

TEST_F(CheckpointStoreTest, PathsAreAttemptAndStep) {
  EXPECT_EQ(store_.path_of(1, 120), folder_.path() / "checkpoints/attempt-0001/step-00000120");
  EXPECT_EQ(store_.path_of(12345, 1234567890).filename(), "step-1234567890");
}

TEST_F(CheckpointStoreTest, WrittenCheckpointVerifiesAndReadsBack) {
  SampleContent content(120);
  CheckpointInfo written = store_.write(1, 120, content);
  CheckpointInfo verified = verify_checkpoint(store_.path_of(1, 120));
  EXPECT_EQ(verified.attempt, 1);
  EXPECT_EQ(verified.step, 120);
  EXPECT_EQ(verified.bytes, written.bytes);
  EXPECT_EQ(verified.manifest_hash, written.manifest_hash);
  EXPECT_EQ(written.manifest_hash, digest_file(written.path / kManifestFile).xxh3_128);
  int64_t bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(written.path))
    bytes += static_cast<int64_t>(file.file_size());
  EXPECT_EQ(written.bytes, bytes);
  EXPECT_EQ(read_file(written.path / kConfigFile), "{\"model_type\": \"llama\"}\n");
  SafetensorsFile model(written.path / kModelFile);
  EXPECT_EQ(model.metadata().at("format"), "pt");
  EXPECT_EQ(std::memcmp(model.require("model.norm.weight", "BF16", {64}).data,
                        content.weights().data(), 128),
            0);
}

TEST_F(CheckpointStoreTest, ListIsOrderedAndIgnoresWhatIsNoCheckpoint) {
  write(2, 10);
  write(1, 200);
  write(1, 30);
  std::filesystem::create_directories(store_.path_of(1, 40));        // no manifest
  put(store_.root() / "attempt-0001/step-5" / kManifestFile, "{}");  // not our name
  put(store_.root() / "attempt-0001/step-00000006x" / kManifestFile, "{}");
  put(store_.root() / "notes.txt", "hello");
  EXPECT_THAT(listed(), ElementsAre(Step(1, 30), Step(1, 200), Step(2, 10)));
  EXPECT_EQ(store_.list()[0].manifest_hash, verify_checkpoint(store_.path_of(1, 30)).manifest_hash);
  EXPECT_EQ(store_.list()[0].bytes, verify_checkpoint(store_.path_of(1, 30)).bytes);
}

TEST_F(CheckpointStoreTest, ListToleratesADamagedManifest) {
  put(write(1, 10).path / kManifestFile, "no json");
  EXPECT_THAT(listed(), ElementsAre(Step(1, 10)));
}

TEST_F(CheckpointStoreTest, WritingAStepAgainReplacesIt) {
  write(1, 10);
  SampleContent other(99);
  store_.write(1, 10, other);
  verify_checkpoint(store_.path_of(1, 10));
  EXPECT_EQ(read_file(store_.path_of(1, 10) / kTrainerStateFile), "{\"step\": 99}\n");
  std::filesystem::directory_iterator entries(store_.root() / "attempt-0001");
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
}

TEST_F(CheckpointStoreTest, RelativePathsAndTrailingSlashesAreTheSameCheckpoint) {
  write(1, 10);
  auto path = store_.path_of(1, 10);
  EXPECT_EQ(verify_checkpoint(path / "").path, path);
  EXPECT_EQ(verify_checkpoint(path / ".." / path.filename()).path, path);
}

TEST_F(CheckpointStoreTest, CopyUnderAnotherNameVerifiesWhereItClaimsNoOtherStep) {
  write(1, 10);
  std::filesystem::copy(store_.path_of(1, 10), folder_ / "mine");
  EXPECT_EQ(verify_checkpoint(folder_ / "mine").step, 10);
  std::filesystem::copy(store_.path_of(1, 10), store_.path_of(1, 11));
  EXPECT_THAT(refusal(store_.path_of(1, 11)).what(), HasSubstr("manifest.json is of step 10"));
  std::filesystem::create_directories(store_.root() / "attempt-0002");
  std::filesystem::copy(store_.path_of(1, 10), store_.path_of(2, 10));
  EXPECT_THAT(refusal(store_.path_of(2, 10)).what(), HasSubstr("manifest.json is of attempt 1"));
}

struct Damage {
  const char* name;
  std::function<void(const std::filesystem::path&)> inflict;
  const char* reason;
};

class CheckpointDamageTest : public CheckpointStoreTest,
                             public testing::WithParamInterface<Damage> {};

TEST_P(CheckpointDamageTest, IsRefusedWithItsReasonAndThePreviousIntactOne) {
  write(1, 10);
  write(1, 20);
  write(1, 30);
  write(1, 40);
  GetParam().inflict(store_.path_of(1, 30));
  CheckpointError error = refusal(store_.path_of(1, 30));
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr(store_.path_of(1, 30).string()), HasSubstr(GetParam().reason),
                    HasSubstr(store_.path_of(1, 20).string())));
  EXPECT_EQ(error.previous(), store_.path_of(1, 20));
  EXPECT_EQ(store_.newest_intact()->step, 40);
}

// In place: flipping twice restores the file.
void flip(const std::filesystem::path& path, size_t at, int bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  int byte = file.get();
  ASSERT_GE(byte, 0) << path << " has no byte " << at;
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte ^ (1 << bit)));
  ASSERT_TRUE(file.flush().good());
}

INSTANTIATE_TEST_SUITE_P(
    All, CheckpointDamageTest,
    testing::Values(
        Damage{"bit_flip", [](const auto& path) { flip(path / kModelFile, 100, 3); },
               "model.safetensors has the hash"},
        Damage{"flip_in_state", [](const auto& path) { flip(path / kTrainerStateFile, 3, 0); },
               "trainer_state.json has the hash"},
        Damage{"truncated",
               [](const auto& path) { std::filesystem::resize_file(path / kOptimizerFile, 100); },
               "optimizer.safetensors has 100 bytes, expected"},
        Damage{"longer",
               [](const auto& path) { std::ofstream(path / kConfigFile, std::ios::app) << " "; },
               "config.json has 25 bytes, expected 24"},
        Damage{"missing", [](const auto& path) { std::filesystem::remove(path / kModelFile); },
               "model.safetensors is missing"},
        Damage{"folder_instead",
               [](const auto& path) {
                 std::filesystem::remove(path / kModelFile);
                 std::filesystem::create_directory(path / kModelFile);
               },
               "model.safetensors is missing"},
        Damage{"extra", [](const auto& path) { put(path / "notes.txt", "x"); },
               "notes.txt is there and not in manifest.json"},
        Damage{"no_manifest",
               [](const auto& path) { std::filesystem::remove(path / kManifestFile); },
               "manifest.json is missing"},
        Damage{"empty_manifest", [](const auto& path) { put(path / kManifestFile, ""); },
               "no valid JSON"},
        Damage{"other_manifest",
               [](const auto& path) {
                 put(path / kManifestFile, R"({"format":"other","version":1})");
               },
               "format \"other\""},
        Damage{"edited_hash",
               [](const auto& path) {
                 CheckpointManifest manifest =
                     parse_manifest(read_file(path / kManifestFile), path / kManifestFile);
                 manifest.files[0].xxh3_128 = std::string(32, '0');
                 put(path / kManifestFile, to_json(manifest));
               },
               "expected 00000000000000000000000000000000"},
        Damage{"manifest_without_model",
               [](const auto& path) {
                 CheckpointManifest manifest =
                     parse_manifest(read_file(path / kManifestFile), path / kManifestFile);
                 std::erase_if(manifest.files,
                               [](const ManifestEntry& file) { return file.name == kModelFile; });
                 put(path / kManifestFile, to_json(manifest));
               },
               "expected model.safetensors once"},
        Damage{"manifest_leaves_folder",
               [](const auto& path) {
                 CheckpointManifest manifest =
                     parse_manifest(read_file(path / kManifestFile), path / kManifestFile);
                 manifest.files.push_back({"../x", 1, ""});
                 put(path / kManifestFile, to_json(manifest));
               },
               "the file name \"../x\""},
        Damage{"gone", [](const auto& path) { std::filesystem::remove_all(path); },
               "no such directory"}),
    [](const auto& damage) { return std::string(damage.param.name); });

TEST_F(CheckpointStoreTest, EveryFlippedBitOfTheManifestIsSeen) {
  auto path = write(1, 10).path;
  const std::string whole = read_file(path / kManifestFile);
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      flip(path / kManifestFile, at, bit);
      EXPECT_THROW(verify_checkpoint(path), CheckpointError) << "byte " << at << " bit " << bit;
      flip(path / kManifestFile, at, bit);
    }
  }
  verify_checkpoint(path);
}

TEST_F(CheckpointStoreTest, EveryDamagedByteOfEveryFileIsSeen) {
  auto path = write(1, 10).path;
  for (const char* name : {kConfigFile, kModelFile, kOptimizerFile, kTrainerStateFile}) {
    const std::string whole = read_file(path / name);
    for (size_t at = 0; at < whole.size(); ++at) {
      flip(path / name, at, static_cast<int>(at % 8));
      EXPECT_THROW(verify_checkpoint(path), CheckpointError) << name << " byte " << at;
      flip(path / name, at, static_cast<int>(at % 8));
    }
  }
  verify_checkpoint(path);
}

TEST_F(CheckpointStoreTest, PreviousIntactIsFoundAcrossDamagedOnesAndAttempts) {
  write(1, 10);
  write(1, 20);
  write(2, 15);
  write(2, 25);
  flip(store_.path_of(1, 20) / kConfigFile, 0, 1);
  flip(store_.path_of(2, 15) / kConfigFile, 0, 1);
  flip(store_.path_of(2, 25) / kConfigFile, 0, 1);
  EXPECT_EQ(refusal(store_.path_of(2, 25)).previous(), store_.path_of(1, 10));
  std::vector<std::string> skipped;
  EXPECT_EQ(store_.newest_intact(&skipped)->path, store_.path_of(1, 10));
  EXPECT_THAT(skipped, ElementsAre(HasSubstr("attempt-0002/step-00000025"),
                                   HasSubstr("attempt-0002/step-00000015"),
                                   HasSubstr("attempt-0001/step-00000020")));
}

TEST_F(CheckpointStoreTest, WithoutAnIntactOneNothingIsOffered) {
  EXPECT_EQ(store_.newest_intact(), std::nullopt);
  flip(write(1, 10).path / kModelFile, 20, 1);
  write(1, 20);  // later ones are not "previous"
  CheckpointError error = refusal(store_.path_of(1, 10));
  EXPECT_EQ(error.previous(), std::nullopt);
  EXPECT_THAT(error.what(), HasSubstr("there is no intact one before it"));
}

TEST_F(CheckpointStoreTest, RetainKeepsTheNewestAndTheNeeded) {
  for (int64_t step : {10, 20, 30, 40, 50}) write(1, step);
  write(2, 15);
  auto deleted = store_.retain(2, [](const CheckpointInfo& info) { return info.step == 20; });
  EXPECT_THAT(listed(), ElementsAre(Step(1, 20), Step(1, 50), Step(2, 15)));
  std::vector<int64_t> steps;
  for (const CheckpointInfo& info : deleted) steps.push_back(info.step);
  EXPECT_THAT(steps, ElementsAre(10, 30, 40));
  std::filesystem::directory_iterator entries(store_.root() / "attempt-0001");
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 2);
  EXPECT_THAT(store_.retain(2, nullptr), testing::SizeIs(1));
  EXPECT_THAT(listed(), ElementsAre(Step(1, 50), Step(2, 15)));
}

TEST_F(CheckpointStoreTest, RetainCountsNoBrokenCheckpointAsKept) {
  for (int64_t step : {10, 20, 30}) write(1, step);
  std::filesystem::resize_file(store_.path_of(1, 30) / kModelFile, 10);
  store_.retain(1, nullptr);
  EXPECT_THAT(listed(), ElementsAre(Step(1, 20), Step(1, 30)));
  EXPECT_EQ(store_.newest_intact()->step, 20);
}

TEST_F(CheckpointStoreTest, RetainAsksOnlyAboutWhatWouldGo) {
  for (int64_t step : {10, 20, 30}) write(1, step);
  std::vector<int64_t> asked;
  store_.retain(2, [&](const CheckpointInfo& info) {
    asked.push_back(info.step);
    return true;
  });
  EXPECT_THAT(asked, ElementsAre(10));
}

TEST_F(CheckpointStoreTest, LargeTensorsKeepTheirHashes) {
  SampleContent content(10, 1'000'000);
  store_.write(1, 10, content);
  EXPECT_GT(verify_checkpoint(store_.path_of(1, 10)).bytes, 6'000'000);
}

}  // namespace
}  // namespace gnomon
