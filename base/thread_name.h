// Names for threads, as debuggers, profilers and `top -H` show them.
#pragma once

#include <pthread.h>

namespace gnomon {

// Names the calling thread; at most 15 characters.
inline void name_thread(const char* name) { ::pthread_setname_np(::pthread_self(), name); }

}  // namespace gnomon
