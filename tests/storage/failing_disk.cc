#include "tests/storage/failing_disk.h"

#include <sqlite3.h>

#include <atomic>
#include <cstring>
#include <limits>

namespace gnomon {
namespace {

struct Plan {
  std::atomic<int64_t> done = 0;
  std::atomic<int64_t> first = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> last = std::numeric_limits<int64_t>::max();
  std::atomic<int> code = SQLITE_OK;
};
Plan plan;
sqlite3_vfs* real_vfs = nullptr;
sqlite3_vfs failing_vfs;

// SQLITE_OK while the disk is well.
int verdict() {
  const int64_t now = plan.done++;
  return now >= plan.first && now < plan.last ? plan.code.load() : SQLITE_OK;
}

struct File {
  sqlite3_file base;
  sqlite3_file* real() { return reinterpret_cast<sqlite3_file*>(this + 1); }
};
File* of(sqlite3_file* file) { return reinterpret_cast<File*>(file); }
const sqlite3_io_methods& methods(sqlite3_file* file) { return *of(file)->real()->pMethods; }

int write(sqlite3_file* f, const void* data, int size, sqlite3_int64 at) {
  const int code = verdict();
  return code != SQLITE_OK ? code : methods(f).xWrite(of(f)->real(), data, size, at);
}
int truncate(sqlite3_file* f, sqlite3_int64 size) {
  const int code = verdict();
  return code != SQLITE_OK ? code : methods(f).xTruncate(of(f)->real(), size);
}
int sync(sqlite3_file* f, int flags) {
  const int code = verdict();
  return code != SQLITE_OK ? code : methods(f).xSync(of(f)->real(), flags);
}
int close(sqlite3_file* f) { return methods(f).xClose(of(f)->real()); }
int read(sqlite3_file* f, void* to, int size, sqlite3_int64 at) {
  return methods(f).xRead(of(f)->real(), to, size, at);
}
int file_size(sqlite3_file* f, sqlite3_int64* size) {
  return methods(f).xFileSize(of(f)->real(), size);
}
int lock(sqlite3_file* f, int level) { return methods(f).xLock(of(f)->real(), level); }
int unlock(sqlite3_file* f, int level) { return methods(f).xUnlock(of(f)->real(), level); }
int reserved(sqlite3_file* f, int* out) {
  return methods(f).xCheckReservedLock(of(f)->real(), out);
}
int control(sqlite3_file* f, int op, void* arg) {
  return methods(f).xFileControl(of(f)->real(), op, arg);
}
int sector_size(sqlite3_file* f) { return methods(f).xSectorSize(of(f)->real()); }
int characteristics(sqlite3_file* f) { return methods(f).xDeviceCharacteristics(of(f)->real()); }
int shm_map(sqlite3_file* f, int page, int size, int extend, void volatile** out) {
  return methods(f).xShmMap(of(f)->real(), page, size, extend, out);
}
int shm_lock(sqlite3_file* f, int offset, int n, int flags) {
  return methods(f).xShmLock(of(f)->real(), offset, n, flags);
}
void shm_barrier(sqlite3_file* f) { methods(f).xShmBarrier(of(f)->real()); }
int shm_unmap(sqlite3_file* f, int remove) { return methods(f).xShmUnmap(of(f)->real(), remove); }

const sqlite3_io_methods kMethods = {
    2,         close,    read,    write,       truncate,        sync,    file_size, lock,
    unlock,    reserved, control, sector_size, characteristics, shm_map, shm_lock,  shm_barrier,
    shm_unmap, nullptr,  nullptr};

int open(sqlite3_vfs*, const char* name, sqlite3_file* f, int flags, int* out_flags) {
  f->pMethods = nullptr;
  const int code = real_vfs->xOpen(real_vfs, name, of(f)->real(), flags, out_flags);
  if (of(f)->real()->pMethods) f->pMethods = &kMethods;
  return code;
}

}  // namespace

FailingDisk::FailingDisk() {
  heal();
  real_vfs = sqlite3_vfs_find(nullptr);
  failing_vfs = *real_vfs;
  failing_vfs.zName = "failing";
  failing_vfs.pNext = nullptr;
  failing_vfs.szOsFile = static_cast<int>(sizeof(File)) + real_vfs->szOsFile;
  failing_vfs.xOpen = open;
  sqlite3_vfs_register(&failing_vfs, 1);
}

FailingDisk::~FailingDisk() {
  sqlite3_vfs_unregister(&failing_vfs);
  sqlite3_vfs_register(real_vfs, 1);
}

void FailingDisk::fail(int64_t at, int64_t count, int code) {
  plan.done = 0;
  plan.code = code;
  plan.last = at + count;
  plan.first = at;
}

void FailingDisk::heal() {
  plan.first = plan.last = std::numeric_limits<int64_t>::max();
  plan.done = 0;
}

int64_t FailingDisk::operations() const { return plan.done; }

}  // namespace gnomon
