// A folder of its own for each ledger test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <future>
#include <memory>
#include <string>

#include "storage/ledger.h"

namespace gnomon {

// Holds the writer's thread inside a write until released, so that the queue behind it can be
// arranged.
class Gate {
 public:
  explicit Gate(Ledger& ledger) {
    // The write may still be waking up when the gate is gone: it owns what it looks at.
    auto entered = std::make_shared<std::promise<void>>();
    bool accepted = ledger.post(
        [entered, opened = open_.get_future().share()](LedgerTransaction&) {
          entered->set_value();
          opened.wait();
        },
        [](std::exception_ptr) {});
    EXPECT_TRUE(accepted);
    entered->get_future().wait();
  }
  void open() { open_.set_value(); }

 private:
  std::promise<void> open_;
};

class LedgerTest : public ::testing::Test {
 protected:
  LedgerTest() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "gnomon-ledger-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    file_ = folder_ / "ledger.sqlite";
  }
  ~LedgerTest() override { std::filesystem::remove_all(folder_); }

  LedgerOptions options() const {
    LedgerOptions options;
    options.file = file_;
    return options;
  }
  static int64_t number(Ledger& ledger, const char* sql) {
    int64_t value = -1;
    ledger.read([&](Connection& connection) {
      Query query = connection.query(sql);
      if (query.next()) {
        value = query.integer(0);
      }
    });
    return value;
  }

  std::filesystem::path folder_;
  std::filesystem::path file_;
};

}  // namespace gnomon
