// The tables of keys in the documents are what the settings say of themselves.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <sstream>

#include "base/files.h"
#include "controller/daemon/daemon_config.h"
#include "controller/decide/policy.h"
#include "protocol/settings.h"
#include "trainer/config_file.h"

namespace gnomon {
namespace {

using Rows = std::vector<SettingRow>;

const std::map<std::string, std::function<Rows()>>& all_settings() {
  static const std::map<std::string, std::function<Rows()>> all = {
      {"policy", [] { return list_settings(decide::Policy()); }},
      {"daemon", [] { return list_settings(DaemonConfig()); }},
      {"receiver", [] { return list_settings(notify::Receiver()); }},
      {"trainer", [] { return list_settings(ConfigFile()); }},
      {"fault", [] { return list_settings(FaultTable()); }},
  };
  return all;
}

// What may be asked for is "keys of policy: limits"; the tables after the colon are all that are
// meant.
std::string generated(const std::string& wanted) {
  std::istringstream words(wanted);
  std::string what, of, name, table;
  words >> what >> of >> name;
  const bool some = name.ends_with(':');
  if (some) name.pop_back();
  const Rows rows = all_settings().at(name)();
  Rows chosen = some ? Rows() : rows;
  while (words >> table) {
    for (const SettingRow& row : rows) {
      if (row.table == table) chosen.push_back(row);
    }
  }
  EXPECT_FALSE(chosen.empty()) << wanted;
  return settings_reference(chosen, name == "daemon");
}

// The document with what belongs between each <!-- WANTED --> and its <!-- end -->.
std::string renewed(const std::string& text) {
  constexpr std::string_view kBegin = "<!-- generated: ";
  constexpr std::string_view kEnd = "<!-- end -->";
  std::string result;
  size_t at = 0;
  for (size_t begin; (begin = text.find(kBegin, at)) != std::string::npos;) {
    const size_t close = text.find(" -->\n", begin);
    const std::string wanted = text.substr(begin + kBegin.size(), close - begin - kBegin.size());
    result += text.substr(at, close + 5 - at) + generated(wanted);
    at = text.find(kEnd, close);
    EXPECT_NE(at, std::string::npos) << wanted << " has no end";
  }
  return result + text.substr(at);
}

TEST(Reference, DocumentsHaveTheKeysThatThereAre) {
  const bool renew = std::getenv("GNOMON_RENEW_DOCUMENTS") != nullptr;
  for (const char* name : {"policy.md", "daemon.md", "notifications.md", "trainer.md"}) {
    const std::filesystem::path file = std::filesystem::path(GNOMON_DOCUMENTS) / name;
    const std::string text = read_file(file);
    const std::string wanted = renewed(text);
    EXPECT_NE(text.find("<!-- generated: "), std::string::npos) << name;
    if (renew && wanted != text) write_file_atomically(file, wanted);
    if (!renew) {
      EXPECT_EQ(text, wanted) << name << " is out of step: GNOMON_RENEW_DOCUMENTS=1 "
                              << "settings_test --gtest_filter=Reference.* writes it";
    }
  }
}

}  // namespace
}  // namespace gnomon
