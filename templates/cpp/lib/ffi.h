// The thin layer over the C ABI of tvm-ffi: exports, tensors, errors.
//
// Functions are plain C symbols `__tvm_ffi_<name>`; nothing of the C++ headers is needed, so that a
// file compiles in a fraction of a second and the library depends on libc alone.
#pragma once
#include <tvm/ffi/c_api.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace kg {
namespace ffi {

// Raises a Python exception of class `kind`; a function returns what this returns.
__attribute__((format(printf, 2, 3))) inline int raise(const char* kind, const char* format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  TVMFFIErrorSetRaisedFromCStr(kind, text);
  return -1;
}

// A tensor argument: a DLTensor handed over as it is, or inside an object. Null for anything else.
inline const DLTensor* tensor(const TVMFFIAny& arg) {
  if (arg.type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(arg.v_ptr);
  if (arg.type_index == kTVMFFITensor) return TVMFFITensorGetDLTensorPtr(arg.v_obj);
  return nullptr;
}

inline void* data(const DLTensor* t) { return static_cast<char*>(t->data) + t->byte_offset; }

inline int64_t elements(const DLTensor* t) {
  int64_t count = 1;
  for (int i = 0; i < t->ndim; ++i) count *= t->shape[i];
  return count;
}

inline bool contiguous(const DLTensor* t) {
  if (!t->strides) return true;
  int64_t dense = 1;
  for (int i = t->ndim - 1; i >= 0; --i) {
    if (t->shape[i] != 1 && t->strides[i] != dense) return false;
    dense *= t->shape[i];
  }
  return true;
}

struct Text {
  const char* data;
  size_t size;
};

// A string argument of any of the forms that callers use. `data` is null for anything else.
inline Text text(const TVMFFIAny& arg) {
  if (arg.type_index == kTVMFFIRawStr) return {arg.v_c_str, strlen(arg.v_c_str)};
  if (arg.type_index == kTVMFFISmallStr) return {arg.v_bytes, (size_t)arg.small_str_len};
  if (arg.type_index == kTVMFFIStr) {
    const TVMFFIByteArray* bytes = TVMFFIBytesGetByteArrayPtr(arg.v_obj);
    return {bytes->data, bytes->size};
  }
  return {nullptr, 0};
}

inline int result(TVMFFIAny* ret) {
  ret->type_index = kTVMFFINone;
  ret->zero_padding = 0;
  ret->v_int64 = 0;
  return 0;
}
inline int result(TVMFFIAny* ret, int64_t value) {
  result(ret);
  ret->type_index = kTVMFFIInt;
  ret->v_int64 = value;
  return 0;
}
inline int result(TVMFFIAny* ret, double value) {
  result(ret);
  ret->type_index = kTVMFFIFloat;
  ret->v_float64 = value;
  return 0;
}
inline int result(TVMFFIAny* ret, const char* value) {
  const TVMFFIByteArray bytes{value, strlen(value)};
  result(ret);
  return TVMFFIStringFromByteArray(&bytes, ret);
}

}  // namespace ffi
}  // namespace kg

#define KG_EXPORT(name)                                                              \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##name(            \
      void*, [[maybe_unused]] const TVMFFIAny* args, [[maybe_unused]] int32_t nargs, TVMFFIAny* ret)

#define KG_ARGUMENTS(n) \
  if (nargs != (n)) return kg::ffi::raise("TypeError", "expected %d arguments, got %d", (n), nargs)
