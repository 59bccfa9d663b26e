/* A driver without a device, for cuDNN to put its kernels into: it takes every binary and does
   nothing with it. */
#include <stddef.h>

#define kNoDevice 100 /* CUDA_ERROR_NO_DEVICE */

/* What the runtime sees. */
int cuInit(unsigned flags) {
  (void)flags;
  return kNoDevice;
}
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuGetErrorString(int error, const char** text) {
  (void)error;
  *text = "no error of a driver without a device";
  return 0;
}
int cuGetErrorName(int error, const char** text) { return cuGetErrorString(error, text); }

/* What a plan's kernel is loaded with. */
int cuLibraryLoadData(void** library, const void* code, void* options, void* values, unsigned count,
                      void* library_options, void* library_values, unsigned library_count) {
  static int some;
  (void)options, (void)values, (void)count;
  (void)library_options, (void)library_values, (void)library_count;
  if (code == NULL) return 1;
  *library = &some;
  return 0;
}
int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
  (void)name;
  *kernel = library;
  return 0;
}
int cuLibraryUnload(void* library) {
  (void)library;
  return 0;
}
int cuKernelGetAttribute(int* value, int attribute, void* kernel, int device) {
  (void)attribute, (void)kernel, (void)device;
  *value = 0;
  return 0;
}
int cuKernelSetAttribute(int attribute, int value, void* kernel, int device) {
  (void)attribute, (void)value, (void)kernel, (void)device;
  return 0;
}

/* What must be there and is not called for a plan. */
#define NEVER_CALLED(name) \
  int name(void) { return kNoDevice; }
NEVER_CALLED(cuCtxGetCurrent)
NEVER_CALLED(cuCtxGetDevice)
NEVER_CALLED(cuCtxGetLimit)
NEVER_CALLED(cuCtxPopCurrent)
NEVER_CALLED(cuCtxPushCurrent)
NEVER_CALLED(cuDeviceGet)
NEVER_CALLED(cuDeviceGetAttribute)
NEVER_CALLED(cuDeviceGetCount)
NEVER_CALLED(cuDevicePrimaryCtxRelease)
NEVER_CALLED(cuDevicePrimaryCtxReset)
NEVER_CALLED(cuDevicePrimaryCtxRetain)
NEVER_CALLED(cuFuncGetAttribute)
NEVER_CALLED(cuFuncSetAttribute)
NEVER_CALLED(cuLaunchCooperativeKernel)
NEVER_CALLED(cuLaunchKernel)
NEVER_CALLED(cuLaunchKernelEx)
NEVER_CALLED(cuLibraryLoadFromFile)
NEVER_CALLED(cuLinkAddData)
NEVER_CALLED(cuLinkAddData_v2)
NEVER_CALLED(cuLinkAddFile_v2)
NEVER_CALLED(cuLinkComplete)
NEVER_CALLED(cuLinkCreate)
NEVER_CALLED(cuLinkCreate_v2)
NEVER_CALLED(cuLinkDestroy)
NEVER_CALLED(cuMemcpyDtoH_v2)
NEVER_CALLED(cuModuleGetFunction)
NEVER_CALLED(cuModuleGetGlobal_v2)
NEVER_CALLED(cuModuleLoadData)
NEVER_CALLED(cuModuleLoadDataEx)
NEVER_CALLED(cuModuleLoadFatBinary)
NEVER_CALLED(cuModuleUnload)
NEVER_CALLED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NEVER_CALLED(cuOccupancyMaxPotentialClusterSize)
NEVER_CALLED(cuStreamGetCtx)
NEVER_CALLED(cuStreamSynchronize)
NEVER_CALLED(cuTensorMapEncodeTiled)
