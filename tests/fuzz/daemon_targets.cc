#include "tests/fuzz/daemon_targets.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <string>

#include "base/errors.h"
#include "base/files.h"
#include "base/temporary_directory.h"
#include "controller/auth/tokens.h"
#include "controller/daemon/daemon_config.h"
#include "storage/ledger.h"
#include "storage/ledger_integrity.h"
#include "tests/fuzz/targets.h"

namespace gnomon::fuzz {
namespace {

// What a daemon that was just made leaves.
const std::string& good_ledger() {
  static const std::string bytes = [] {
    const TemporaryDirectory folder;
    const std::filesystem::path file = folder / "ledger.sqlite";
    { const Ledger ledger({.file = file, .on_commit = {}, .on_outcome = {}}); }
    return read_file(file);
  }();
  return bytes;
}

std::string changed_ledger(std::span<const uint8_t> changes) {
  std::string bytes = good_ledger();
  for (; changes.size() >= 6; changes = changes.subspan(6)) {
    uint32_t number;
    std::memcpy(&number, changes.data(), sizeof number);
    const size_t place = number % bytes.size();
    const size_t length = std::min<size_t>(changes[4], bytes.size() - place);
    std::memset(bytes.data() + place, changes[5], length);
  }
  return bytes;
}

std::string cut_ledger(std::span<const uint8_t> input) {
  uint32_t length = 0;
  std::memcpy(&length, input.data(), std::min(input.size(), sizeof length));
  return good_ledger().substr(0, length % good_ledger().size());
}

void run_daemon_config(std::span<const uint8_t> input) {
  const TemporaryDirectory folder;
  write_plainly(folder / "gnomond.toml", text_of(input));
  try {
    const DaemonConfig config = read_daemon_config(folder / "gnomond.toml");
    require(keys_for_restart(config, config).empty(), "a configuration differs from itself");
    check_daemon_config(config);
  } catch (const ConfigError& error) {
    require(!error.accepted().empty(), "a configuration is refused without a word");
  }
}

void run_tokens(std::span<const uint8_t> input) {
  try {
    const std::vector<Token> tokens = parse_tokens(text_of(input), "tokens.toml");
    require(parse_tokens(tokens_as_toml(tokens), "again") == tokens,
            "tokens change when they are written and read");
  } catch (const ConfigError&) {
  }
}

constexpr std::array kDaemonTargets = {
    Target{"http", run_http, 1'500, kAnyMemory}, Target{"ledger", run_ledger, 150, kAnyMemory},
    Target{"daemon_config", run_daemon_config, 3'000}, Target{"tokens", run_tokens, 3'000}};

}  // namespace

void run_ledger(std::span<const uint8_t> input) {
  if (input.empty()) return;
  const TemporaryDirectory folder;
  const std::filesystem::path file = folder / "ledger.sqlite";
  const auto rest = input.subspan(1);
  const bool has_wal = input[0] == 'w';
  const std::string bytes = input[0] == 'p'   ? changed_ledger(rest)
                            : input[0] == 'c' ? cut_ledger(rest)
                            : has_wal         ? good_ledger()
                                              : std::string(text_of(rest));
  write_plainly(file, bytes);
  if (has_wal) write_plainly(wal_of(file), text_of(rest));
  try {
    Ledger ledger({.file = file, .queue_max = 16, .readers = 1, .on_commit = {}, .on_outcome = {}});
    ledger.read([](Connection& connection) {
      Query query = connection.query("SELECT count(*) FROM runs");
      query.next();
    });
  } catch (const LedgerError& error) {
    require(std::string_view(error.what()).size() > 20, "a ledger is refused without advice");
    require(has_wal || read_file(file) == bytes, "a ledger that is refused was changed");
  }
}

std::span<const Target> daemon_targets() { return kDaemonTargets; }

}  // namespace gnomon::fuzz
