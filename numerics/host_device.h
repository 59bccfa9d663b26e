// Functions that are the same on the host and in a device's kernels.
#pragma once

#ifdef __CUDACC__
#define GNOMON_HOST_DEVICE __host__ __device__
#else
#define GNOMON_HOST_DEVICE
#endif
