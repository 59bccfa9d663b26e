gnomon_test(storage_ledger_test SOURCES ledger_test.cc ledger_audit_test.cc ledger_backup_test.cc ledger_corruption_test.cc ledger_rows_test.cc ledger_migrations_test.cc
  LIBS gnomon_ledger fmt::fmt LABELS storage)
target_compile_definitions(storage_ledger_test PRIVATE
  GNOMON_LEDGER_SCHEMA_V1="${CMAKE_CURRENT_SOURCE_DIR}/ledger_schema_v1.sql")
gnomon_test(storage_ledger_crash_test SOURCES ledger_crash_test.cc LIBS gnomon_ledger LABELS storage)
if(NOT GNOMON_SANITIZE)
  gnomon_test(storage_ledger_restore_crash_test SOURCES ledger_restore_crash_test.cc syscall_tracer.cc
    LIBS gnomon_ledger LABELS storage)
endif()
gnomon_test(storage_ledger_fault_test SOURCES ledger_fault_test.cc failing_disk.cc LIBS gnomon_ledger LABELS storage)
