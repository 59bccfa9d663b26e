# The ledger: one SQLite file. The schema is compiled in, so that the binary needs no file beside it.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/schema.sql)
file(READ ${CMAKE_CURRENT_SOURCE_DIR}/schema.sql GNOMON_SCHEMA_SQL)
configure_file(ledger_schema.h.in ${CMAKE_BINARY_DIR}/generated/storage/ledger_schema.h @ONLY)

gnomon_library(gnomon_ledger
  ledger.cc ledger_audit.cc ledger_backup.cc ledger_connection.cc ledger_decisions.cc ledger_deletion.cc ledger_file.cc ledger_files.cc ledger_health.cc ledger_integrity.cc ledger_leases.cc ledger_lock.cc ledger_migrations.cc
  ledger_notices.cc ledger_outbox.cc ledger_file_identity.cc ledger_results.cc ledger_retention.cc ledger_runs.cc ledger_statistics.cc ledger_trainers.cc ledger_windows.cc json_rows.cc rows.cc)
target_link_libraries(gnomon_ledger
  PUBLIC gnomon_protocol SQLiteCpp PkgConfig::SQLITE3 Threads::Threads
  PRIVATE Boost::boost Boost::json)
