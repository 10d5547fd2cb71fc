// A stand-in for libcuda.so.1 that records what a launcher asks of it, one line a call.
//
// Environment: FAKE_LOG, the file to append to. FAKE_SM (90), FAKE_VERSION (13000), FAKE_DEVICES (1).
// FAKE_PARAMETERS, "symbol:8,8,4;…", the bytes of each kernel's parameters (a real driver reads them from the
// code). FAKE_FAIL, "function=error" or "function=error@n" for the n-th call alone.
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

namespace {

struct Attribute {
  int id;
  char padding[4];
  uint32_t words[16];
};
struct Config {
  unsigned grid[3], block[3], shared;
  void* stream;
  Attribute* attributes;
  unsigned count;
};

const char* setting(const char* name, const char* otherwise) {
  const char* found = getenv(name);
  return found ? found : otherwise;
}

__attribute__((format(printf, 1, 2))) void record(const char* format, ...) {
  FILE* file = fopen(setting("FAKE_LOG", "/dev/null"), "a");
  va_list args;
  va_start(args, format);
  vfprintf(file, format, args);
  va_end(args);
  fputc('\n', file);
  fclose(file);
}

// The error that this call of `function` is to return.
int failing(const char* function) {
  static std::map<std::string, int> calls;
  const int call = ++calls[function];
  const std::string text = setting("FAKE_FAIL", ""), start = std::string(function) + "=";
  if (text.compare(0, start.size(), start) != 0) return 0;
  const size_t at = text.find('@');
  if (at != std::string::npos && atoi(text.c_str() + at + 1) != call) return 0;
  return atoi(text.c_str() + start.size());
}

struct Function {
  std::string symbol;
  int shared_limit;
};
void* current_context = nullptr;
int device_context;  // its address is the primary context

}  // namespace

#define CALL(name, ...)                                \
  extern "C" int name(__VA_ARGS__) {                   \
    if (const int error = failing(#name)) return error;
#define END return 0; }

CALL(cuInit, unsigned) END
CALL(cuDriverGetVersion, int* version) *version = atoi(setting("FAKE_VERSION", "13000")); END
CALL(cuGetErrorName, int error, const char** name)
  *name = error == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : error == 100 ? "CUDA_ERROR_NO_DEVICE" : error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
END
CALL(cuGetErrorString, int error, const char** text)
  *text = error == 209 ? "no kernel image is available" : "a made-up error";
END
CALL(cuDeviceGetCount, int* count) *count = atoi(setting("FAKE_DEVICES", "1")); END
CALL(cuDeviceGet, int* device, int index) *device = index; END
CALL(cuDeviceGetName, char* name, int size, int) snprintf(name, size, "Fake \"GPU\""); END
CALL(cuDeviceGetAttribute, int* value, int attribute, int)
  const int sm = atoi(setting("FAKE_SM", "90"));
  *value = attribute == 75 ? sm / 10 : attribute == 76 ? sm % 10 : -1;
END
CALL(cuDeviceTotalMem_v2, size_t* bytes, int) *bytes = 141000000000; END
CALL(cuDevicePrimaryCtxRetain, void** context, int device)
  record("cuDevicePrimaryCtxRetain %d", device);
  *context = &device_context;
END
CALL(cuCtxGetCurrent, void** context) *context = current_context; END
CALL(cuCtxSetCurrent, void* context)
  record("cuCtxSetCurrent %s", context == &device_context ? "primary" : context ? "other" : "none");
  current_context = context;
END
// For tests: what another library had made current.
extern "C" void fake_use_other_context() { current_context = &current_context; }
CALL(cuModuleLoadData, void** module, const void* code)
  record("cuModuleLoadData %.32s", (const char*)code);
  *module = const_cast<void*>(code);
END
CALL(cuModuleGetFunction, void** function, void*, const char* symbol)
  record("cuModuleGetFunction %s", symbol);
  *function = new Function{symbol, 48 << 10};
END
CALL(cuFuncSetAttribute, void* function, int attribute, int value)
  record("cuFuncSetAttribute %s %d %d", ((Function*)function)->symbol.c_str(), attribute, value);
  if (attribute == 8) ((Function*)function)->shared_limit = value;
END

// The map's first word is its address, so that launches show which one they were given.
CALL(cuTensorMapEncodeTiled, void* map, int element, unsigned rank, void* start, const uint64_t* sides, const uint64_t* strides,
     const unsigned* box, const unsigned* every, int interleave, int swizzle, int promotion, int outside)
  if (current_context != &device_context) return 201;
  if (rank != 2 || every[0] != 1 || every[1] != 1 || interleave || outside || (uintptr_t)map % 64) return 1;
  if ((uintptr_t)start % 16 || strides[0] % 16) return 1;
  record("cuTensorMapEncodeTiled element=%d start=%llu sides=%llu,%llu row=%llu box=%u,%u swizzle=%d promotion=%d", element,
         (unsigned long long)(uintptr_t)start, (unsigned long long)sides[0], (unsigned long long)sides[1],
         (unsigned long long)strides[0], box[0], box[1], swizzle, promotion);
  memset(map, 0, 128);
  *(void**)map = start;
END

#ifndef WITHOUT_LAUNCH
CALL(cuLaunchKernelEx, const Config* config, void* handle, void** parameters, void** extra)
  const Function& function = *(Function*)handle;
  if (current_context != &device_context) return 201;
  if (extra || config->shared > (unsigned)function.shared_limit) return 1;
  std::string attributes, values;
  for (unsigned i = 0; i < config->count; ++i) {
    char text[32];
    snprintf(text, sizeof text, "%s%d=%u", i ? "," : "", config->attributes[i].id, config->attributes[i].words[0]);
    attributes += text;
  }
  const std::string all = setting("FAKE_PARAMETERS", ""), start = function.symbol + ":";
  size_t at = all.compare(0, start.size(), start) == 0 ? 0 : all.find(";" + start);
  if (at == std::string::npos) return 1;
  const char* sizes = all.c_str() + at + start.size() + (at ? 1 : 0);
  for (int i = 0; *sizes && *sizes != ';'; ++i) {
    uint64_t value = 0;  // of longer ones the start
    const size_t bytes = strtoul(sizes, const_cast<char**>(&sizes), 10);
    memcpy(&value, parameters[i], bytes < sizeof value ? bytes : sizeof value);
    if (*sizes == ',') ++sizes;
    char text[32];
    snprintf(text, sizeof text, "%s%llu", i ? "," : "", (unsigned long long)value);
    values += text;
  }
  record("cuLaunchKernelEx %s grid=%u,%u,%u block=%u,%u,%u shared=%u stream=%llu attributes=%s values=%s", function.symbol.c_str(),
         config->grid[0], config->grid[1], config->grid[2], config->block[0], config->block[1], config->block[2], config->shared,
         (unsigned long long)(uintptr_t)config->stream, attributes.c_str(), values.c_str());
END
#endif
