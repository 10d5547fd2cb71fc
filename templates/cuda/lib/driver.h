// The NVIDIA driver, found at the first use: a library with kernels loads on any machine.
//
// Neither CUDA headers nor libcudart are needed. Structures and numbers are those of cuda.h, which are
// part of the driver's ABI; a test compares them wherever a cuda.h is found.
#pragma once
#include <dlfcn.h>
#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "ffi.h"

namespace kg {
namespace cuda {

using Result = int;   // CUresult
using Device = int;   // CUdevice
using Handle = void*;  // CUcontext, CUmodule, CUfunction, CUstream

constexpr int OLDEST_DRIVER = 12000;  // CUDA 12.0, as cuDriverGetVersion spells it

enum LaunchAttributeId : int { COOPERATIVE = 2, CLUSTER_DIMENSION = 4, PROGRAMMATIC_STREAM_SERIALIZATION = 6 };
enum FunctionAttribute : int { MAX_DYNAMIC_SHARED_BYTES = 8, PREFERRED_SHARED_CARVEOUT = 9 };
enum DeviceAttribute : int { CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 };

struct LaunchAttribute {  // CUlaunchAttribute
  int id;
  char padding[4];
  union {
    char bytes[64];
    int number;
    unsigned sides[3];
  } value;
};
struct LaunchConfig {  // CUlaunchConfig
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  Handle stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

// A matrix as the unit that copies blocks to shared memory sees it. Numbers of CUtensorMap… enumerations.
struct alignas(64) TensorMap {  // CUtensorMap
  uint64_t words[16];
};
enum TensorMapSetting : int { FLOAT16 = 6, FLOAT32 = 7, BFLOAT16 = 9, NO_INTERLEAVE = 0, PROMOTE_TO_128_BYTES = 2, ZEROS_OUTSIDE = 0 };

#define KG_DRIVER_FUNCTIONS(X)                                               \
  X(cuInit, "cuInit", (unsigned))                                            \
  X(cuDriverGetVersion, "cuDriverGetVersion", (int*))                        \
  X(cuGetErrorName, "cuGetErrorName", (Result, const char**))                \
  X(cuGetErrorString, "cuGetErrorString", (Result, const char**))            \
  X(cuDeviceGetCount, "cuDeviceGetCount", (int*))                            \
  X(cuDeviceGet, "cuDeviceGet", (Device*, int))                              \
  X(cuDeviceGetName, "cuDeviceGetName", (char*, int, Device))                \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, Device))       \
  X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t*, Device))              \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (Handle*, Device)) \
  X(cuCtxGetCurrent, "cuCtxGetCurrent", (Handle*))                           \
  X(cuCtxSetCurrent, "cuCtxSetCurrent", (Handle))                            \
  X(cuModuleLoadData, "cuModuleLoadData", (Handle*, const void*))            \
  X(cuModuleGetFunction, "cuModuleGetFunction", (Handle*, Handle, const char*)) \
  X(cuFuncSetAttribute, "cuFuncSetAttribute", (Handle, int, int))            \
  X(cuLaunchKernelEx, "cuLaunchKernelEx", (const LaunchConfig*, Handle, void**, void**)) \
  X(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled",                          \
    (TensorMap*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*, int, int, int, int))

// Entry points of libcuda, or in `problem` why there are none.
struct Driver {
#define X(name, symbol, arguments) Result(*name) arguments = nullptr;
  KG_DRIVER_FUNCTIONS(X)
#undef X
  int version = 0;
  char problem[256] = {};

  void find() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      snprintf(problem, sizeof problem, "no NVIDIA driver (libcuda.so.1) on this machine");
      return;
    }
    cuDriverGetVersion = reinterpret_cast<Result (*)(int*)>(dlsym(library, "cuDriverGetVersion"));
    if (cuDriverGetVersion) cuDriverGetVersion(&version);
    const char* missing = nullptr;
#define X(name, symbol, arguments)                                    \
  name = reinterpret_cast<Result(*) arguments>(dlsym(library, symbol)); \
  if (!name && !missing) missing = symbol;
    KG_DRIVER_FUNCTIONS(X)
#undef X
    if (version < OLDEST_DRIVER || missing)
      snprintf(problem, sizeof problem, "the NVIDIA driver is too old: it supports CUDA %d.%d%s%s, CUDA %d.%d or newer is needed",
               version / 1000, version % 1000 / 10, missing ? " and lacks " : "", missing ? missing : "",
               OLDEST_DRIVER / 1000, OLDEST_DRIVER % 1000 / 10);
    else if (Result result = cuInit(0))
      describe("cuInit", result, problem, sizeof problem);
  }

  // "cuInit: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)"
  void describe(const char* what, Result result, char* text, size_t size) const {
    const char *name = nullptr, *meaning = nullptr;
    if (cuGetErrorName) cuGetErrorName(result, &name);
    if (cuGetErrorString) cuGetErrorString(result, &meaning);
    snprintf(text, size, "%s: %s (%s)", what, name ? name : "unknown error", meaning ? meaning : "no description");
  }
};

// pthread_once and not a local's constructor: the latter would need libstdc++.
inline const Driver& driver() {
  static Driver found;
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  static const auto find = [] { found.find(); };
  pthread_once(&once, find);
  return found;
}

// Raises a driver's error; `what` says what was tried.
inline int raise(const char* what, Result result) {
  char text[384];
  driver().describe(what, result, text, sizeof text);
  return ffi::raise("RuntimeError", "%s", text);
}

}  // namespace cuda
}  // namespace kg

// Leaves the function with the error raised when a driver's call fails.
#define KG_DRIVER(call)                                                     \
  do {                                                                      \
    if (const kg::cuda::Result result_ = kg::cuda::driver().call) {         \
      static constexpr char text_[] = #call;                                \
      char name_[40];                                                       \
      snprintf(name_, sizeof name_, "%.*s", (int)strcspn(text_, "("), text_); \
      return kg::cuda::raise(name_, result_);                               \
    }                                                                       \
  } while (0)
