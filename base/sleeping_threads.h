// How OpenMP's threads wait for each other. Those of libgomp spin, which costs everything where
// more threads want to run than there are cores (docs/decisions/0010-openmp-threads-sleep.md).
#pragma once

namespace gnomon {

// Makes OpenMP's threads sleep while they wait, unless the user has set OMP_WAIT_POLICY or
// GOMP_SPINCOUNT. libgomp reads these before main(), so the program starts itself again, once, in
// the same process and with the same arguments. The first thing in main(): what was opened and
// changed before is lost. Returns where there is nothing to do, and where it cannot be done.
void make_waiting_threads_sleep(char** argv);

}  // namespace gnomon
