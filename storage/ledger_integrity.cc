#include "storage/ledger_integrity.h"

#include <SQLiteCpp/Statement.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "storage/ledger_file.h"
#include "storage/ledger_lock.h"
#include "storage/ledger_migrations.h"

namespace gnomon {
namespace {

// The first sentences of a check that says "ok" when all is well.
std::vector<std::string> findings(SQLite::Database& database, const std::string& pragma) {
  std::vector<std::string> lines;
  SQLite::Statement check(database, pragma);
  while (check.executeStep()) {
    if (check.getColumn(0).getString() != "ok") lines.push_back(check.getColumn(0).getString());
  }
  return lines;
}

void check_foreign_keys(SQLite::Database& database, LedgerHealth& health) {
  SQLite::Statement violations(database,
                               "SELECT \"table\", parent, count(*) FROM "
                               "pragma_foreign_key_check() GROUP BY 1, 2");
  while (violations.executeStep()) {
    health.problems.push_back(fmt::format(
        "{} rows of {} name rows of {} that are not there", violations.getColumn(2).getInt64(),
        violations.getColumn(0).getString(), violations.getColumn(1).getString()));
  }
}

LedgerHealth examine(SQLite::Database& database, const std::filesystem::path& file,
                     const std::function<bool()>& end_now) {
  LedgerHealth health;
  health.bytes = file_bytes(file);
  health.version = ledger_version(database, file);
  if (health.version == 0) {
    throw LedgerError(fmt::format("{} has no tables: it is no ledger", file.string()),
                      SQLITE_NOTADB);
  }
  try {
    const Interrupter interrupter(database, end_now);
    health.problems = findings(database, "PRAGMA integrity_check(5)");
    if (!health.good()) return health;
    check_foreign_keys(database, health);
    if (health.version == kLedgerVersion) {
      check_schema(database, file);
      health.audit = ledger::verify_audit(database);
      if (!health.audit.good()) health.problems.push_back("audit log: " + health.audit.problem);
    }
  } catch (const SQLite::Exception& error) {
    if (error.getErrorCode() != SQLITE_CORRUPT) {
      throw ledger_error(fmt::format("cannot read the ledger {}", file.string()), error);
    }
    health.problems.emplace_back(error.what());
  } catch (const LedgerError& error) {
    health.problems.emplace_back(error.what());
  }
  return health;
}

}  // namespace

Interrupter::Interrupter(SQLite::Database& database, const std::function<bool()>& end_now) {
  if (!end_now) return;
  thread_ = std::thread([this, handle = database.getHandle(), &end_now] {
    std::unique_lock lock(mutex_);
    while (!over_changed_.wait_for(lock, std::chrono::milliseconds(50), [this] { return over_; })) {
      if (end_now()) sqlite3_interrupt(handle);
    }
  });
}

Interrupter::~Interrupter() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  over_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void give_way_to_others() {
  const auto thread = static_cast<id_t>(::syscall(SYS_gettid));
  ::setpriority(PRIO_PROCESS, thread, 19);
  constexpr int kWhoProcess = 1;
  constexpr int kIdleClass = 3 << 13;
  ::syscall(SYS_ioprio_set, kWhoProcess, thread, kIdleClass);
}

LedgerHealth examine_ledger(const std::filesystem::path& ledger,
                            const std::function<bool()>& end_now) {
  const std::filesystem::path file = resolve_ledger(ledger);
  check_ledger_files(file, LedgerWriter::kPossible);
  SQLite::Database database = open_for_looking(file);
  return examine(database, file, end_now);
}

LedgerHealth examine_closed_ledger(const std::filesystem::path& file,
                                   const std::function<bool()>& end_now) {
  check_ledger_files(file);
  inspect_ledger(file);
  SQLite::Database database(sqlite_uri(file) + "?immutable=1",
                            SQLite::OPEN_READONLY | SQLite::OPEN_URI);
  return examine(database, file, end_now);
}

BackgroundCheck::BackgroundCheck(std::filesystem::path ledger, Hooks hooks)
    : ledger_(std::move(ledger)), hooks_(std::move(hooks)), thread_([this] { run(); }) {}

BackgroundCheck::~BackgroundCheck() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ending_changed_.notify_all();
  thread_.join();
}

BackgroundCheck::State BackgroundCheck::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

std::string BackgroundCheck::problem() const {
  const std::lock_guard lock(mutex_);
  return problem_;
}

// False when it is to end.
bool BackgroundCheck::wait_a_moment() {
  std::unique_lock lock(mutex_);
  return !ending_changed_.wait_for(lock, std::chrono::seconds(10), [this] { return ending_; });
}

void BackgroundCheck::run() {
  give_way_to_others();
  std::string problem;
  try {
    problem = look();
  } catch (const SQLite::Exception& error) {
    problem = error.what();
  } catch (const Error& error) {
    problem = error.what();
  }
  State state = problem.empty() ? State::kOk : State::kFailed;
  {
    const std::lock_guard lock(mutex_);
    if (ending_) return;
    state_ = state;
    problem_ = problem;
  }
  if (hooks_.on_end) hooks_.on_end(state, problem);
}

// A table at a time, each in a read of its own. One that has to be left is begun again later.
std::string BackgroundCheck::look() {
  SQLite::Database database = open_for_looking(ledger_);
  database.exec("PRAGMA cache_size=-2000");
  const std::function<bool()> end_now = [this] {
    if (hooks_.pause && hooks_.pause()) return true;
    const std::lock_guard lock(mutex_);
    return ending_;
  };
  std::vector<std::string> tables;
  {
    SQLite::Statement names(database,
                            "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name");
    while (names.executeStep()) tables.push_back(names.getColumn(0).getString());
  }
  const Interrupter interrupter(database, end_now);
  for (size_t next = 0; next < tables.size();) {
    try {
      const std::vector<std::string> found =
          findings(database, fmt::format("PRAGMA quick_check('{}')", tables[next]));
      if (!found.empty()) return fmt::format("table {}: {}", tables[next], found.front());
      ++next;
    } catch (const SQLite::Exception& error) {
      if ((error.getErrorCode() & 0xff) != SQLITE_INTERRUPT) {
        return fmt::format("table {}: {}", tables[next], error.what());
      }
      if (!wait_a_moment()) throw;
    }
  }
  return {};
}

}  // namespace gnomon
