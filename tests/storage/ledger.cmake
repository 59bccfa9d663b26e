gnomon_test(storage_ledger_test SOURCES ledger_test.cc ledger_rows_test.cc LIBS gnomon_ledger fmt::fmt LABELS storage)
gnomon_test(storage_ledger_crash_test SOURCES ledger_crash_test.cc LIBS gnomon_ledger LABELS storage)
