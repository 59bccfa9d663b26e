#include "base/shared_library.h"

#include <gtest/gtest.h>
#include <zlib.h>

namespace gnomon {
namespace {

const SharedLibrary& zlib() {
  static const SharedLibrary library({.what = "zlib", .file = "libz.so.1"});
  return library;
}

template <class Body>
std::string refusal(Body body) {
  try {
    body();
  } catch (const MissingLibrary& error) {
    return error.what();
  }
  return "accepted";
}

TEST(SharedLibrary, GivesFunctionsAsTheHeaderDeclaresThem) {
  EXPECT_STREQ(GNOMON_FROM_LIBRARY(zlib(), zlibVersion)(), zlibVersion());
  const Bytef text[] = {'a', 'b'};
  EXPECT_EQ(GNOMON_FROM_LIBRARY(zlib(), crc32)(0, text, 2), crc32(0, text, 2));
}

TEST(SharedLibrary, OneThatIsNotThereIsToldWithEveryPlaceAndTheAdvice) {
  const std::string text = refusal([] {
    SharedLibrary({.what = "a library of no use",
                   .file = "libgnomon-none.so.7",
                   .folders = {"/no/such/folder"},
                   .advice = "It comes with nothing."});
  });
  EXPECT_NE(text.find("a library of no use is not there"), std::string::npos) << text;
  EXPECT_NE(text.find("/no/such/folder/libgnomon-none.so.7"), std::string::npos) << text;
  EXPECT_NE(text.find("It comes with nothing."), std::string::npos) << text;
}

TEST(SharedLibrary, IsFoundInOneOfItsFolders) {
  // The loader does not look there by itself.
  const std::string text =
      refusal([] { SharedLibrary({.what = "a module", .file = "gnomon_module.so"}); });
  EXPECT_NE(text, "accepted");
  const SharedLibrary module({.what = "a module",
                              .file = "gnomon_module.so",
                              .folders = {"/no/such/folder", GNOMON_MODULE_FOLDER}});
  EXPECT_EQ(module.function<int(int)>("gnomon_module_twice")(21), 42);
}

TEST(SharedLibrary, AFunctionThatItLacksIsNamed) {
  const std::string text = refusal([] { zlib().function<void()>("no_such_function"); });
  EXPECT_NE(text.find("libz.so.1 has no function no_such_function"), std::string::npos) << text;
}

}  // namespace
}  // namespace gnomon
