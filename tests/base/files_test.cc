#include "base/files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "base/errors.h"
#include "base/named_file.h"
#include "tests/storage/test_files.h"

namespace gnomon {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class FilesTest : public testing::Test {
 protected:
  size_t entries() const {
    fs::directory_iterator entries(folder_.path());
    return static_cast<size_t>(std::distance(begin(entries), end(entries)));
  }
  TemporaryDirectory folder_;
  fs::path path_ = folder_ / "file";
};

TEST_F(FilesTest, WriteCreatesAndReplaces) {
  write_file_atomically(path_, "old");
  EXPECT_EQ(read_file(path_), "old");
  write_file_atomically(path_, std::string_view("new\0content", 11));
  EXPECT_EQ(read_file(path_), std::string("new\0content", 11));
  write_file_atomically(path_, "");
  EXPECT_EQ(read_file(path_), "");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FilesTest, OldContentSurvivesAFailedWrite) {
  write_file_atomically(path_, "old");
  {
    FileSizeLimit limit(1000);
    EXPECT_THAT(
        message_of<SystemError>([&] { write_file_atomically(path_, std::string(5000, 'x')); }),
        AllOf(HasSubstr("cannot write"), HasSubstr(path_.string()), HasSubstr("File too large")));
  }
  EXPECT_EQ(read_file(path_), "old");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FilesTest, WriteIntoAMissingFolderNamesIt) {
  EXPECT_THAT(message_of<SystemError>([&] { write_file_atomically(folder_ / "no/file", "x"); }),
              AllOf(HasSubstr("no/file"), HasSubstr("No such file or directory")));
}

TEST_F(FilesTest, ATargetThatIsAFolderLeavesNoTemporaryFile) {
  fs::create_directory(path_);
  EXPECT_THROW(write_file_atomically(path_, "x"), SystemError);
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FilesTest, ThreadsThatReplaceOneFileNeverMixTheirContents) {
  const std::string one(100'000, '1'), two(100'000, '2');
  auto write_often = [&](const std::string& content) {
    for (int i = 0; i < 50; ++i) write_file_atomically(path_, content);
  };
  write_file_atomically(path_, one);
  {
    std::jthread first([&] { EXPECT_NO_THROW(write_often(one)); });
    std::jthread second([&] { EXPECT_NO_THROW(write_often(two)); });
    for (int i = 0; i < 200; ++i) {
      std::string now = read_file(path_);
      ASSERT_TRUE(now == one || now == two) << now.size();
    }
  }
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FilesTest, ReadGivesEveryByteOfALargeFile) {
  std::string large(1'000'001, '\0');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 7);
  write_file_atomically(path_, large);
  EXPECT_EQ(read_file(path_), large);
}

// Neither waits nor fills the memory, whatever a configuration names.
TEST_F(FilesTest, ANamedFileIsARegularOneThatIsNotTooLong) {
  const auto refused = [](const fs::path& path, size_t bytes_max = kNamedFileBytesMax) {
    return message_of<Error>([&] { read_named_file(path, bytes_max); });
  };
  write_file_atomically(path_, std::string(2048, 'x'));
  EXPECT_EQ(read_named_file(path_, 2048).size(), 2048u);
  EXPECT_THAT(refused(path_, 2047), AllOf(HasSubstr(path_.string()), HasSubstr("more than 1 KiB")));
  fs::create_symlink("file", folder_ / "link");
  EXPECT_EQ(read_named_file(folder_ / "link").size(), 2048u);
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(refused(folder_ / "pipe"), HasSubstr("it is a pipe, not a regular file"));
  EXPECT_THAT(refused(folder_.path()), HasSubstr("it is a folder"));
  EXPECT_THAT(refused("/dev/zero"), HasSubstr("it is a device"));
  EXPECT_THAT(refused(folder_ / "none"), HasSubstr("No such file"));
}

TEST_F(FilesTest, ReadAndSyncNameWhatIsMissing) {
  EXPECT_THAT(message_of<SystemError>([&] { read_file(path_); }), HasSubstr(path_.string()));
  EXPECT_THAT(message_of<SystemError>([&] { sync_path(path_); }), HasSubstr(path_.string()));
  EXPECT_THAT(message_of<SystemError>([&] { read_file(folder_.path()); }),
              HasSubstr("Is a directory"));
  EXPECT_NO_THROW(sync_path(folder_.path()));
}

TEST_F(FilesTest, DescriptorsCloseAndMove) {
  write_file_atomically(path_, "x");
  int number = -1;
  {
    FileDescriptor first = FileDescriptor::open(path_, O_RDONLY);
    number = first.get();
    EXPECT_NE(::fcntl(number, F_GETFD) & FD_CLOEXEC, 0);
    FileDescriptor second = std::move(first);
    EXPECT_FALSE(first);
    EXPECT_EQ(second.get(), number);
    EXPECT_GE(::fcntl(number, F_GETFD), 0);
  }
  EXPECT_LT(::fcntl(number, F_GETFD), 0);
}

TEST(NamedPipeTest, APipeIsReadByWhoAsksForItAndToItsEnd) {
  test::TemporaryDirectory folder;
  const std::filesystem::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(read_named_file_or_pipe(pipe), "") << "nobody writes into it, and nobody is waited for";
  FileDescriptor both = FileDescriptor::open(pipe, O_RDWR);
  FileDescriptor end = FileDescriptor::open(pipe, O_WRONLY);
  both.close();
  std::thread writer([&] {
    pollfd readers{end.get(), 0, 0};  // POLLERR while there is none
    while (::poll(&readers, 1, 0) > 0) std::this_thread::yield();
    write_all(end.get(), "secret\n", pipe);
    end.close();
  });
  EXPECT_EQ(read_named_file_or_pipe(pipe), "secret\n");
  writer.join();
  EXPECT_THROW(read_named_file(pipe), Error);
}

}  // namespace
}  // namespace gnomon
