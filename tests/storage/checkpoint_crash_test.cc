// What a crash, a full disk or a failing device leaves behind, at every system call of a
// checkpoint's life.
#include <gmock/gmock.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/files.h"
#include "storage/checkpoint_manifest.h"
#include "storage/checkpoint_store.h"
#include "tests/storage/checkpoint_fixture.h"
#include "tests/storage/syscall_tracer.h"
#include "tests/storage/test_files.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kWritten = 0;
constexpr int kRefused = 3;

class CheckpointCrashTest : public testing::Test {
 protected:
  // In the child: writes step 20 of attempt 1.
  std::function<int()> writing() const {
    return [this] {
      try {
        CheckpointStore store(root_);
        store.write(1, 20, SampleContent(21));
        return kWritten;
      } catch (const Error& error) {
        put(folder_ / "message.txt", error.what());
        return kRefused;
      }
    };
  }
  // The store before the strike: step 10, and step 20 if asked for. Copied, because writing it
  // syncs.
  void start_over(bool with_old) {
    const fs::path prepared = folder_ / (with_old ? "with-old" : "without-old");
    if (!fs::exists(prepared)) {
      CheckpointStore store(prepared);
      store.write(1, 10, SampleContent(10));
      if (with_old) store.write(1, 20, SampleContent(20));
    }
    fs::remove_all(root_);
    fs::copy(prepared, root_, fs::copy_options::recursive);
  }
  std::string state_of(int64_t step) const {
    return read_file(CheckpointStore(root_).path_of(1, step) / kTrainerStateFile);
  }
  // A store's next start: step 10 is intact, step 20 whole or absent, and nothing else is there.
  bool present_after_restart() {
    CheckpointStore store(root_);
    verify_checkpoint(store.path_of(1, 10));
    bool present = fs::exists(store.path_of(1, 20));
    if (present) verify_checkpoint(store.path_of(1, 20));
    fs::directory_iterator entries(root_ / "attempt-0001");
    EXPECT_EQ(std::distance(begin(entries), end(entries)), present ? 2 : 1);
    return present;
  }
  std::string read_message() const {
    return fs::exists(folder_ / "message.txt") ? read_file(folder_ / "message.txt") : "";
  }
  size_t calls_of_a_write() {
    TracedRun run = run_traced(writing(), Strike::kNone, 0);
    EXPECT_EQ(run.exit_status, kWritten);
    return run.calls.size();
  }

  TemporaryDirectory folder_;
  fs::path root_ = folder_ / "checkpoints";
};

TEST_F(CheckpointCrashTest, KilledAtAnyCallANewCheckpointIsWholeOrAbsent) {
  start_over(false);
  size_t calls = calls_of_a_write();
  ASSERT_GT(calls, 20u);
  int present = 0;
  for (size_t at = 0; at < calls; ++at) {
    start_over(false);
    ASSERT_TRUE(run_traced(writing(), Strike::kKill, at).killed) << "call " << at;
    present += present_after_restart();
  }
  EXPECT_GT(present, 0);
  EXPECT_LT(present, 10);
}

TEST_F(CheckpointCrashTest, KilledAtAnyCallAReplacedCheckpointIsTheOldOrTheNewOne) {
  start_over(true);
  size_t calls = calls_of_a_write();
  int replaced = 0;
  for (size_t at = 0; at < calls; ++at) {
    start_over(true);
    ASSERT_TRUE(run_traced(writing(), Strike::kKill, at).killed) << "call " << at;
    ASSERT_TRUE(present_after_restart()) << "call " << at;
    replaced += state_of(20) == "{\"step\": 21}\n";
  }
  EXPECT_GT(replaced, 0);
  EXPECT_LT(replaced, static_cast<int>(calls) / 2);
}

TEST_F(CheckpointCrashTest, AnyFailingCallLeavesNothingAndNamesAFile) {
  start_over(false);
  size_t calls = calls_of_a_write();
  int refused = 0;
  for (size_t at = 0; at < calls; ++at) {
    start_over(false);
    TracedRun run = run_traced(writing(), Strike::kFail, at, ENOSPC);
    bool present = present_after_restart();
    if (run.exit_status == kWritten) {
      EXPECT_TRUE(present) << "call " << at;
    } else {
      ASSERT_EQ(run.exit_status, kRefused) << "call " << at;
      ++refused;
      EXPECT_FALSE(present) << "call " << at;
      EXPECT_THAT(read_file(folder_ / "message.txt"),
                  AllOf(HasSubstr(root_.string()), HasSubstr("No space left on device")));
    }
  }
  EXPECT_GT(refused, 15);
}

TEST_F(CheckpointCrashTest, AnyFailingCallLeavesTheReplacedCheckpoint) {
  start_over(true);
  size_t calls = calls_of_a_write();
  for (size_t at = 0; at < calls; ++at) {
    start_over(true);
    TracedRun run = run_traced(writing(), Strike::kFail, at, EIO);
    ASSERT_TRUE(present_after_restart()) << "call " << at;
    EXPECT_EQ(state_of(20), run.exit_status == kWritten ? "{\"step\": 21}\n" : "{\"step\": 20}\n");
  }
}

TEST_F(CheckpointCrashTest, EverythingIsSyncedBeforeTheNameAndTheNameAfterwards) {
  start_over(false);
  TracedRun run = run_traced(writing(), Strike::kNone, 0);
  auto rename = std::find(run.calls.begin(), run.calls.end(), SYS_rename);
  ASSERT_NE(rename, run.calls.end());
  EXPECT_EQ(std::count(run.calls.begin(), rename, SYS_fsync), 6);  // five files and their folder
  EXPECT_EQ(std::count(rename, run.calls.end(), SYS_fsync), 1);
  EXPECT_EQ(std::count(rename, run.calls.end(), SYS_write), 0);
}

TEST_F(CheckpointCrashTest, KilledAtAnyCallADeletionLeavesNoHalfCheckpoint) {
  auto retaining = [this] {
    CheckpointStore store(root_);
    store.retain(1, nullptr);
    return kWritten;
  };
  start_over(true);
  size_t calls = run_traced(retaining, Strike::kNone, 0).calls.size();
  int deleted = 0;
  for (size_t at = 0; at < calls; ++at) {
    start_over(true);
    ASSERT_TRUE(run_traced(retaining, Strike::kKill, at).killed) << "call " << at;
    CheckpointStore store(root_);
    verify_checkpoint(store.path_of(1, 20));
    if (fs::exists(store.path_of(1, 10)))
      verify_checkpoint(store.path_of(1, 10));
    else
      ++deleted;
    fs::directory_iterator entries(root_ / "attempt-0001");
    EXPECT_EQ(std::distance(begin(entries), end(entries)),
              fs::exists(store.path_of(1, 10)) ? 2 : 1);
  }
  EXPECT_GT(deleted, 0);
  EXPECT_LT(deleted, static_cast<int>(calls));
}

TEST_F(CheckpointCrashTest, FullDiskNamesTheFileThatDidNotFit) {
  CheckpointStore store(root_);
  SampleContent content(20, 50'000);  // 100 kB of model, 200 kB of optimizer
  {
    FileSizeLimit limit(150'000);
    EXPECT_THAT(message_of<SystemError>([&] { store.write(1, 20, content); }),
                AllOf(HasSubstr("optimizer.safetensors"), HasSubstr("File too large")));
  }
  EXPECT_TRUE(store.list().empty());
  EXPECT_TRUE(fs::is_empty(root_ / "attempt-0001"));
  store.write(1, 20, content);
  verify_checkpoint(store.path_of(1, 20));
}

TEST_F(CheckpointCrashTest, AStoreOpenedByAnotherProcessDisturbsNoLivingWriter) {
  start_over(false);
  size_t calls = calls_of_a_write();
  for (size_t at = 0; at < calls; ++at) {
    start_over(false);
    TracedRun run =
        run_traced(writing(), Strike::kNone, at, 0, [this] { CheckpointStore store(root_); });
    EXPECT_EQ(run.exit_status, kWritten) << "call " << at << ": " << read_message();
    EXPECT_TRUE(present_after_restart()) << "call " << at;
  }
}

TEST_F(CheckpointCrashTest, AnotherHostsLeftoversGoOnlyAfterADay) {
  start_over(false);
  auto leftover = root_ / "attempt-0001/.staging-step-00000020.another-host.1.abcdef";
  put(leftover / kModelFile, "half");
  CheckpointStore young(root_);
  EXPECT_TRUE(fs::exists(leftover));
  fs::last_write_time(leftover, fs::file_time_type::clock::now() - std::chrono::hours(25));
  CheckpointStore old(root_);
  EXPECT_FALSE(fs::exists(leftover));
}

}  // namespace
}  // namespace gnomon
