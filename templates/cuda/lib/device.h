// One GPU and the machine code on it: its context, and kernels loaded when they are first wanted.
#pragma once
#include <atomic>

#include "driver.h"

namespace kg {
namespace cuda {

constexpr int MAX_KERNELS = 4096;
constexpr unsigned PLAIN_SHARED_BYTES = 48 << 10;  // more has to be asked for

// One compiled kernel. Code for capability 9.0 and later runs on exactly that one, older code on later minors too.
struct Image {
  const char* name;
  const char* symbol;
  const unsigned char* code;
  unsigned threads, shared_bytes;
  int carve_out;  // percent of the most shared memory there can be, −1: no preference
  bool pdl, cooperative;
  int cluster;  // neighbouring blocks that run together; 1: none
};
struct Code {
  int sm;                 // 90 for 9.0
  const char* assembler;  // what the code was made with
  const Image* images;
  int count;
};

// What is known of a GPU before anything runs on it.
struct DeviceInfo {
  char name[96];
  int sm;
  size_t memory_bytes;
};

inline int device_info(int index, DeviceInfo& info) {
  Device device;
  int major = 0, minor = 0;
  KG_DRIVER(cuDeviceGet(&device, index));
  KG_DRIVER(cuDeviceGetName(info.name, (int)sizeof info.name, device));
  KG_DRIVER(cuDeviceGetAttribute(&major, CAPABILITY_MAJOR, device));
  KG_DRIVER(cuDeviceGetAttribute(&minor, CAPABILITY_MINOR, device));
  KG_DRIVER(cuDeviceTotalMem(&info.memory_bytes, device));
  info.sm = major * 10 + minor;
  return 0;
}

inline bool runs_on(int code_sm, int device_sm) {
  if (code_sm >= 90) return code_sm == device_sm;
  return code_sm / 10 == device_sm / 10 && code_sm <= device_sm;
}

// Holds a lock; std::mutex would need libstdc++ for the exceptions that it may throw.
class Locked {
 public:
  explicit Locked(pthread_mutex_t& mutex) : mutex_(mutex) { pthread_mutex_lock(&mutex_); }
  ~Locked() { pthread_mutex_unlock(&mutex_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  pthread_mutex_t& mutex_;
};

// The GPU that all buffers lie on. Contexts and modules stay until the process ends.
struct Gpu {
  int index = -1;
  Handle context = nullptr;
  pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
  std::atomic<Handle> functions[MAX_KERNELS] = {};
};

inline Gpu& gpu() {
  static Gpu one;
  return one;
}

// Checks the driver and the GPU once, and retains the context that the CUDA runtime (and torch) uses.
inline int open_gpu(const Code& code) {
  Gpu& g = gpu();
  if (driver().problem[0]) return ffi::raise("RuntimeError", "%s", driver().problem);
  const Locked lock(g.guard);
  if (g.context) return 0;
  if (g.index < 0) return ffi::raise("RuntimeError", "no buffer is bound: the GPU to run on is not known yet");
  DeviceInfo info;
  if (device_info(g.index, info)) return -1;
  if (!runs_on(code.sm, info.sm))
    return ffi::raise("RuntimeError", "needs sm_%d, found sm_%d (device %d, %s)", code.sm, info.sm, g.index, info.name);
  Device device;
  KG_DRIVER(cuDeviceGet(&device, g.index));
  KG_DRIVER(cuDevicePrimaryCtxRetain(&g.context, device));
  return 0;
}

// Makes the GPU's context current while it lives. A thread that had none keeps it, as with the CUDA runtime.
class Current {
 public:
  int enter() {
    Handle now = nullptr;
    KG_DRIVER(cuCtxGetCurrent(&now));
    if (now == gpu().context) return 0;
    KG_DRIVER(cuCtxSetCurrent(gpu().context));
    before_ = now;
    return 0;
  }
  ~Current() {
    if (before_) driver().cuCtxSetCurrent(before_);
  }

 private:
  Handle before_ = nullptr;
};

// The CUDA version of an assembler ("ptxas 12.8"), as cuDriverGetVersion spells it; 0 where it names none.
inline int version_of(const char* assembler) {
  // By hand: sscanf and strtol have names of their own in new C libraries, which old ones lack.
  int parts[2] = {}, part = 0;
  for (const char* c = assembler; *c && part < 2; ++c) {
    if (*c >= '0' && *c <= '9') parts[part] = parts[part] * 10 + (*c - '0');
    else if (parts[0]) ++part;
  }
  return parts[0] * 1000 + parts[1] * 10;
}

// What to do about code that the driver does not load: the usual cause is that it is the older one of the two.
inline void advise(const char* assembler, char* text, size_t size) {
  const int needed = version_of(assembler), found = driver().version;
  text[0] = 0;
  if (found < needed)
    snprintf(text, size, "; a driver for CUDA %d.%d or newer is needed", needed / 1000, needed % 1000 / 10);
}

inline int load_locked(const Code& code, int number) {
  const Image& image = code.images[number];
  Handle module = nullptr, function = nullptr;
  if (const Result result = driver().cuModuleLoadData(&module, image.code)) {
    char text[256], needed[80];
    driver().describe("cuModuleLoadData", result, text, sizeof text);
    advise(code.assembler, needed, sizeof needed);
    return ffi::raise("RuntimeError", "%s: the driver (CUDA %d.%d) does not load the code made by %s for sm_%d: %s%s", image.name,
                      driver().version / 1000, driver().version % 1000 / 10, code.assembler, code.sm, text, needed);
  }
  KG_DRIVER(cuModuleGetFunction(&function, module, image.symbol));
  if (image.shared_bytes > PLAIN_SHARED_BYTES) KG_DRIVER(cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_BYTES, (int)image.shared_bytes));
  if (image.carve_out >= 0) KG_DRIVER(cuFuncSetAttribute(function, PREFERRED_SHARED_CARVEOUT, image.carve_out));
  gpu().functions[number].store(function, std::memory_order_release);
  return 0;
}

// The loaded kernel; needs the context to be current.
inline int function_of(const Code& code, int number, Handle& function) {
  Gpu& g = gpu();
  function = g.functions[number].load(std::memory_order_acquire);
  if (function) return 0;
  const Locked lock(g.guard);
  function = g.functions[number].load(std::memory_order_relaxed);
  if (function) return 0;
  if (load_locked(code, number)) return -1;
  function = g.functions[number].load(std::memory_order_relaxed);
  return 0;
}

// GPUs that the driver shows, as JSON: [{"device": 0, "name": "NVIDIA H200", "sm": 90, "memory_bytes": …}]
inline int devices(char* text, size_t size) {
  if (driver().problem[0]) return ffi::raise("RuntimeError", "%s", driver().problem);
  int count = 0;
  KG_DRIVER(cuDeviceGetCount(&count));
  size_t used = (size_t)snprintf(text, size, "[");
  for (int i = 0; i < count && used + 256 < size; ++i) {
    DeviceInfo info;
    if (device_info(i, info)) return -1;
    for (char* c = info.name; *c; ++c)
      if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ') *c = '?';
    used += (size_t)snprintf(text + used, size - used, "%s{\"device\": %d, \"name\": \"%s\", \"sm\": %d, \"memory_bytes\": %zu}",
                             i ? ", " : "", i, info.name, info.sm, info.memory_bytes);
  }
  snprintf(text + used, size - used, "]");
  return 0;
}

}  // namespace cuda
}  // namespace kg
