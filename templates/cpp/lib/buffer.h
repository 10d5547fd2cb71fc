// Buffers that are handed over by name: element types and what a tensor has to be. Shared by CPU and GPU programs.
#pragma once
#include "ffi.h"

namespace kg {

enum class Element : uint8_t { f32, bf16, i32, u8 };

// A buffer that the loader fills.
struct Weight {
  const char* name;
  Element element;
  int64_t elements;
};

inline const char* element_name(Element e) {
  static const char* const names[] = {"float32", "bfloat16", "int32", "uint8"};
  return names[(int)e];
}

inline bool is_element(const DLTensor* t, Element e) {
  static const DLDataType types[] = {{kDLFloat, 32, 1}, {kDLBfloat, 16, 1}, {kDLInt, 32, 1}, {kDLUInt, 8, 1}};
  const DLDataType& want = types[(int)e];
  return t->dtype.code == want.code && t->dtype.bits == want.bits && t->dtype.lanes == 1;
}

// Reads a tensor argument: on a device of this type, dense, aligned. Null with the error raised.
inline const DLTensor* dense_tensor(const TVMFFIAny& arg, const char* name, DLDeviceType device, unsigned alignment) {
  const DLTensor* t = ffi::tensor(arg);
  if (!t) {
    ffi::raise("TypeError", "%s: a tensor is expected", name);
  } else if (t->device.device_type != device) {
    ffi::raise("ValueError", "%s: lies on device type %d, %s (%d) is expected", name, (int)t->device.device_type,
               device == kDLCPU ? "the CPU" : "CUDA", (int)device);
  } else if (!ffi::contiguous(t)) {
    ffi::raise("ValueError", "%s: must be contiguous", name);
  } else if ((uintptr_t)ffi::data(t) % alignment != 0) {
    ffi::raise("ValueError", "%s: must be aligned to %u bytes", name, alignment);
  } else {
    return t;
  }
  return nullptr;
}

// Whether a tensor is of an element type; the error is raised where it is not.
inline bool check_element(const DLTensor* t, const char* name, Element element) {
  if (is_element(t, element)) return true;
  ffi::raise("ValueError", "%s: wrong dtype (code %d, %d bits), %s is expected", name, t->dtype.code, t->dtype.bits, element_name(element));
  return false;
}

// Elements of a tensor that is made of whole units (rows, pages); -1 with the error raised.
inline int64_t whole_units(const DLTensor* t, const char* name, int64_t unit) {
  const int64_t count = ffi::elements(t);
  if (count % unit == 0) return count / unit;
  return ffi::raise("ValueError", "%s: %lld elements are not a multiple of %lld", name, (long long)count, (long long)unit);
}

inline int check_elements(const DLTensor* t, const char* name, int64_t expected, const char* what = "elements") {
  if (ffi::elements(t) == expected) return 0;
  return ffi::raise("ValueError", "%s: %lld %s, %lld are expected", name, (long long)ffi::elements(t), what, (long long)expected);
}

}  // namespace kg
