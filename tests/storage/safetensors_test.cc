#include "storage/safetensors.h"

#include <fcntl.h>
#include <gmock/gmock.h>

#include <cstring>

#include "base/errors.h"
#include "base/files.h"
#include "storage/hashed_file.h"
#include "tests/storage/test_files.h"

namespace gnomon {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string file_with(std::string_view header, std::string_view data) {
  uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  return bytes.append(header).append(data);
}

class SafetensorsTest : public testing::Test {
 protected:
  std::string error_for(const std::string& bytes) {
    put(path_, bytes);
    return message_of<FormatError>([&] { SafetensorsFile file(path_); });
  }

  TemporaryDirectory folder_;
  std::filesystem::path path_ = folder_ / "t.safetensors";
};

TEST_F(SafetensorsTest, WritesTheBytesOfTheReferenceImplementation) {
  const float weight[4] = {1, 2, 3, 4};
  const uint16_t half[3] = {0x3f80, 0x4000, 0xc000};
  const uint8_t bytes[1] = {9};
  const int64_t steps[1] = {-1};
  std::vector<TensorView> tensors = {{"b", "BF16", {3}, half},
                                     {"u", "U8", {1}, bytes},
                                     {"w", "F32", {2, 2}, weight},
                                     {"s", "I64", {}, steps}};
  write_safetensors(path_, tensors, {{"format", "pt"}});
  std::string header =
      R"({"__metadata__":{"format":"pt"},"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("w":{"dtype":"F32","shape":[2,2],"data_offsets":[8,24]},)"
      R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]},)"
      R"("u":{"dtype":"U8","shape":[1],"data_offsets":[30,31]}})";
  while (header.size() % 8 != 0) header += ' ';
  std::string data("\xff\xff\xff\xff\xff\xff\xff\xff", 8);
  data.append(reinterpret_cast<const char*>(weight), sizeof weight);
  data.append("\x80\x3f\x00\x40\x00\xc0\x09", 7);
  EXPECT_EQ(read_file(path_), file_with(header, data));
}

TEST_F(SafetensorsTest, ReturnsTheHashOfTheFile) {
  std::vector<float> values(300'000, 1.5f);  // more than one chunk
  std::string hash =
      write_safetensors(path_, std::vector<TensorView>{{"w", "F32", {300'000}, values.data()}});
  EXPECT_EQ(hash, digest_file(path_).xxh3_128);
}

TEST_F(SafetensorsTest, RoundTripKeepsEveryBitNameAndShape) {
  std::vector<uint32_t> odd = {0x7fc00001, 0xff800000, 0x80000000,
                               1};  // NaN payload, -inf, -0, denormal
  std::vector<uint8_t> large(1'000'003);
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<uint8_t>(i * 31);
  std::vector<TensorView> tensors = {{"model.\"quoted\".\xc3\xa9", "F32", {4, 1}, odd.data()},
                                     {"empty", "BF16", {0, 5}, nullptr},
                                     {"large", "U8", {1'000'003}, large.data()}};
  write_safetensors(path_, tensors, {{"format", "pt"}, {"note", "a\nb"}});
  SafetensorsFile file(path_);
  EXPECT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.metadata().at("note"), "a\nb");
  for (const TensorView& tensor : tensors) {
    const TensorView& read = file.require(tensor.name, tensor.dtype, tensor.shape);
    EXPECT_EQ(
        reinterpret_cast<uintptr_t>(read.data) % static_cast<uintptr_t>(dtype_bytes(tensor.dtype)),
        0u);
    EXPECT_TRUE(tensor.bytes() == 0 ||
                std::memcmp(read.data, tensor.data, static_cast<size_t>(tensor.bytes())) == 0);
  }
}

TEST_F(SafetensorsTest, NoTensorsAtAllIsAFileToo) {
  write_safetensors(path_, {});
  EXPECT_EQ(read_file(path_), file_with("{}      ", ""));
  EXPECT_TRUE(SafetensorsFile(path_).tensors().empty());
}

TEST_F(SafetensorsTest, ReadsTensorsBehindFourGigabytes) {
  constexpr int64_t kFirst = 4'500'000'000;
  std::string header = R"({"a":{"dtype":"U8","shape":[4500000000],"data_offsets":[0,4500000000]},)"
                       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[4500000000,4500000002]}})";
  while (header.size() % 8 != 0) header += ' ';
  put(path_, file_with(header, ""));
  FileDescriptor fd = FileDescriptor::open(path_, O_WRONLY);
  ASSERT_EQ(::pwrite(fd.get(), "hi", 2, 8 + static_cast<int64_t>(header.size()) + kFirst), 2);
  SafetensorsFile file(path_);
  EXPECT_EQ(std::memcmp(file.require("b", "U8", {2}).data, "hi", 2), 0);
}

TEST_F(SafetensorsTest, RequireNamesWhatIsThereAndWhatWasWanted) {
  const float weight[2] = {1, 2};
  write_safetensors(path_, std::vector<TensorView>{{"w", "F32", {2}, weight}});
  SafetensorsFile file(path_);
  EXPECT_EQ(file.find("v"), nullptr);
  EXPECT_THAT(message_of<FormatError>([&] { file.require("v", "F32", {2}); }),
              AllOf(HasSubstr(path_.string()), HasSubstr("no tensor \"v\"")));
  EXPECT_THAT(message_of<FormatError>([&] { file.require("w", "BF16", {2}); }),
              HasSubstr("found tensor \"w\" as F32 [2], expected BF16 [2]"));
  EXPECT_THAT(message_of<FormatError>([&] {
                file.require("w", "F32", {1, 2});
              }),
              HasSubstr("expected F32 [1, 2]"));
}

TEST_F(SafetensorsTest, LyingHeaderLengthsAreRefused) {
  EXPECT_THAT(error_for(""), HasSubstr("at byte 0: found the end of the file"));
  EXPECT_THAT(error_for("1234567"), HasSubstr("at byte 7: found the end of the file"));
  EXPECT_THAT(error_for(std::string(8, '\0')), HasSubstr("a header length of 0"));
  EXPECT_THAT(
      error_for(std::string(8, '\xff') + "{}"),
      HasSubstr("a header length of 18446744073709551615, expected 2 to 2 in a file of 10"));
  EXPECT_THAT(error_for(std::string("\x03\0\0\0\0\0\0\0{}", 10)),
              HasSubstr("a header length of 3"));
}

TEST_F(SafetensorsTest, AHeaderAboveTheBoundIsRefusedThoughTheFileIsLongEnough) {
  put(path_, std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10));  // 100,000,001
  std::filesystem::resize_file(path_, 8 + 100'000'001);       // sparse
  EXPECT_THAT(message_of<FormatError>([&] { SafetensorsFile file(path_); }),
              HasSubstr("a header length of 100000001, expected 2 to 100000000"));
}

TEST_F(SafetensorsTest, HeadersThatAreNoJsonObjectAreRefusedAtTheirByte) {
  EXPECT_THAT(error_for(file_with("[]", "")),
              HasSubstr("at byte 8: found byte 0x5b, expected '{'"));
  EXPECT_THAT(error_for(file_with("{\"a\" 1}", "")), HasSubstr("at byte 13"));
  EXPECT_THAT(error_for(file_with("{} {}", "")), HasSubstr("bytes behind the JSON"));
  EXPECT_THAT(error_for(file_with("{\"a", "")), HasSubstr("no valid JSON"));
  EXPECT_THAT(error_for(file_with(std::string("{\"\xff\":1}"), "")), HasSubstr("no valid JSON"));
  EXPECT_THAT(error_for(file_with("{\"a\":" + std::string(100'000, '['), "")),
              HasSubstr("no valid JSON"));
}

struct BadTensor {
  const char* members;  // of tensor "w" with 8 bytes of data behind the header
  const char* expected;
};

class SafetensorsBadTensorTest : public SafetensorsTest,
                                 public testing::WithParamInterface<BadTensor> {};

TEST_P(SafetensorsBadTensorTest, IsRefused) {
  std::string header = std::string("{\"w\":") + GetParam().members + "}";
  while (header.size() % 8 != 0) header += ' ';
  EXPECT_THAT(error_for(file_with(header, "12345678")),
              AllOf(HasSubstr(path_.string()), HasSubstr(GetParam().expected)));
}

const BadTensor kBadTensors[] = {
    BadTensor{"7", "expected an object"},
    BadTensor{R"({"shape":[2],"data_offsets":[0,8]})", "no member \"dtype\""},
    BadTensor{R"({"dtype":"F32","data_offsets":[0,8]})", "no member \"shape\""},
    BadTensor{R"({"dtype":"F32","shape":[2]})", "no member \"data_offsets\""},
    BadTensor{R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})", "a member \"x\""},
    BadTensor{R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})", "unknown dtype \"F33\""},
    BadTensor{R"({"dtype":7,"shape":[2],"data_offsets":[0,8]})", "expected a string"},
    BadTensor{R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})", "expected an array"},
    BadTensor{R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", "shape [-2]"},
    BadTensor{R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})", "extents of 0 or more"},
    BadTensor{R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})",
              "extents of 0 or more"},
    BadTensor{R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]})",
              "less than 2^63"},
    BadTensor{R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", "12 bytes, as F32 [3] takes"},
    BadTensor{R"({"dtype":"BF16","shape":[2],"data_offsets":[0,8]})", "4 bytes, as BF16 [2]"},
    BadTensor{R"({"dtype":"F32","shape":[2],"data_offsets":[0]})", "[begin, end]"},
    BadTensor{R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,16]})", "[begin, end]"},
    BadTensor{R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", "begin <= end"},
    BadTensor{R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})", "0 <= begin"},
    BadTensor{R"({"dtype":"F32","shape":[2],"data_offsets":[8,16]})", "<= 8, the bytes of data"},
    BadTensor{R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", "data from 4"},
    BadTensor{R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", "4 bytes behind the last"},
    BadTensor{R"({"dtype":"U8","shape":[8],"shape":[8],"data_offsets":[0,8]})",
              "the key \"shape\" twice"},
    BadTensor{R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{})", "the key \"w\" twice"},
    BadTensor{R"({"dtype":"U8","shape":[6],"data_offsets":[0,6]},"v":)"
              R"({"dtype":"U8","shape":[4],"data_offsets":[4,8]})",
              "data from 4, expected 6"},
    BadTensor{R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]},"v":)"
              R"({"dtype":"U8","shape":[4],"data_offsets":[4,8]})",
              "data from 4, expected 1"},
    BadTensor{R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]},"v":)"
              R"({"dtype":"BOOL","shape":[7],"data_offsets":[1,8]},"__metadata__":{"a":1})",
              "metadata \"a\" = 1"}};

INSTANTIATE_TEST_SUITE_P(All, SafetensorsBadTensorTest, testing::ValuesIn(kBadTensors));

TEST_F(SafetensorsTest, MisalignedTensorIsRefused) {
  std::string header = R"({"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                       R"("w":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})";
  while (header.size() % 8 != 0) header += ' ';
  EXPECT_THAT(error_for(file_with(header, "123456")),
              AllOf(HasSubstr("tensor \"w\""), HasSubstr("expected a multiple of 4")));
}

TEST_F(SafetensorsTest, MisalignedHeaderIsRefused) {
  std::string header = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  while (header.size() % 4 != 1) header += ' ';
  EXPECT_THAT(error_for(file_with(header, "12345678")), HasSubstr("expected a multiple of 4"));
}

TEST_F(SafetensorsTest, EveryTruncationIsRefused) {
  const double value = 1;
  write_safetensors(path_, std::vector<TensorView>{{"w", "F64", {1}, &value}});
  const std::string whole = read_file(path_);
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_NE(error_for(whole.substr(0, size)), "") << size;
  EXPECT_THAT(error_for(whole + "x"), HasSubstr("1 bytes behind the last tensor"));
}

TEST_F(SafetensorsTest, NoDamagedByteMakesATensorLeaveTheFile) {
  const float weight[4] = {1, 2, 3, 4};
  const uint8_t bytes[4] = {1, 2, 3, 4};
  write_safetensors(path_,
                    std::vector<TensorView>{{"w", "F32", {2, 2}, weight}, {"b", "U8", {4}, bytes}});
  const std::string whole = read_file(path_);
  int refused = 0;
  for (size_t at = 0; at < whole.size() - 20; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      put(path_, damaged);
      try {
        SafetensorsFile file(path_);
        int64_t bytes_in_all = 0;
        for (const TensorView& tensor : file.tensors()) bytes_in_all += tensor.bytes();
        EXPECT_EQ(bytes_in_all, 20);
      } catch (const FormatError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 500);
}

TEST_F(SafetensorsTest, WriterRefusesWhatIsOurMistake) {
  const float weight[1] = {1};
  auto error_of = [&](std::vector<TensorView> tensors) {
    return message_of<Error>([&] { write_safetensors(path_, tensors); });
  };
  EXPECT_THAT(error_of({{"w", "F32", {1}, weight}, {"w", "F32", {1}, weight}}), HasSubstr("\"w\""));
  EXPECT_THAT(error_of({{"__metadata__", "F32", {1}, weight}}), HasSubstr("reserved"));
  EXPECT_THAT(error_of({{"w", "F32", {1}, nullptr}}), HasSubstr("no data"));
  EXPECT_THAT(error_of({{"w", "F32", {-1}, weight}}), HasSubstr("shape [-1]"));
  EXPECT_THAT(error_of({{"w", "float", {1}, weight}}),
              AllOf(HasSubstr("unknown dtype \"float\""), HasSubstr("BF16"), HasSubstr("F32")));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(SafetensorsTest, FullDiskNamesTheFile) {
  std::vector<float> values(100'000, 1);
  FileSizeLimit limit(200'000);
  EXPECT_THAT(
      message_of<SystemError>([&] {
        write_safetensors(path_, std::vector<TensorView>{{"w", "F32", {100'000}, values.data()}});
      }),
      AllOf(HasSubstr(path_.string()), HasSubstr("File too large")));
}

}  // namespace
}  // namespace gnomon
