// The buffers that a step works on: bound once by name, all of them on one GPU.
#pragma once
#include "device.h"

namespace kg {
namespace cuda {

enum Bound : uint32_t { LOGITS, SAMPLED, CACHE, WORKSPACE, LAST_SAMPLED, COUNTERS, BOUND_COUNT };
enum class Element : uint8_t { f32, bf16, i32, u8 };

struct Weight {
  const char* name;
  Element element;
  int64_t elements;
};

// What a buffer that is no weight has to be: `unit` elements count as one.
struct Buffer {
  const char* name;
  Element element;
  int64_t unit;
  unsigned alignment;
};

constexpr int MAX_WEIGHTS = 1 << 14;
constexpr unsigned WEIGHT_ALIGNMENT = 16, PAGE_ALIGNMENT = 256;

struct Buffers {
  void* weights[MAX_WEIGHTS];
  void* bound[BOUND_COUNT];
  int64_t units[BOUND_COUNT];  // rows of logits and sampled, pages, bytes of the workspace, slots, counters
};

inline Buffers& buffers() {
  static Buffers all{};
  return all;
}

inline const char* element_name(Element e) {
  static const char* const names[] = {"float32", "bfloat16", "int32", "uint8"};
  return names[(int)e];
}

inline bool is_element(const DLTensor* t, Element e) {
  static const DLDataType types[] = {{kDLFloat, 32, 1}, {kDLBfloat, 16, 1}, {kDLInt, 32, 1}, {kDLUInt, 8, 1}};
  const DLDataType& want = types[(int)e];
  return t->dtype.code == want.code && t->dtype.bits == want.bits && t->dtype.lanes == 1;
}

// Reads a tensor argument: on the GPU of the other buffers, dense, aligned. Null with the error raised.
inline const DLTensor* gpu_tensor(const TVMFFIAny& arg, const char* name, unsigned alignment) {
  const DLTensor* t = ffi::tensor(arg);
  const int gpu_index = gpu().index;
  if (!t) {
    ffi::raise("TypeError", "%s: a tensor is expected", name);
  } else if (t->device.device_type != kDLCUDA) {
    ffi::raise("ValueError", "%s: lies on device type %d, CUDA (%d) is expected", name, (int)t->device.device_type, (int)kDLCUDA);
  } else if (gpu_index >= 0 && t->device.device_id != gpu_index) {
    ffi::raise("ValueError", "%s: lies on cuda:%d, other buffers on cuda:%d", name, t->device.device_id, gpu_index);
  } else if (!ffi::contiguous(t)) {
    ffi::raise("ValueError", "%s: must be contiguous", name);
  } else if ((uintptr_t)ffi::data(t) % alignment != 0) {
    ffi::raise("ValueError", "%s: must be aligned to %u bytes", name, alignment);
  } else {
    return t;
  }
  return nullptr;
}

// The same, of one element type.
inline const DLTensor* typed_tensor(const TVMFFIAny& arg, const char* name, Element element, unsigned alignment) {
  const DLTensor* t = gpu_tensor(arg, name, alignment);
  if (!t || is_element(t, element)) return t;
  ffi::raise("ValueError", "%s: wrong dtype (code %d, %d bits), %s is expected", name, t->dtype.code, t->dtype.bits, element_name(element));
  return nullptr;
}

inline int bind_buffer(const Buffer& buffer, Bound which, const TVMFFIAny& arg) {
  const DLTensor* t = typed_tensor(arg, buffer.name, buffer.element, buffer.alignment);
  if (!t) return -1;
  const int64_t count = ffi::elements(t);
  if (count % buffer.unit != 0)
    return ffi::raise("ValueError", "%s: %lld elements are not a multiple of %lld", buffer.name, (long long)count, (long long)buffer.unit);
  gpu().index = t->device.device_id;
  buffers().bound[which] = ffi::data(t);
  buffers().units[which] = count / buffer.unit;
  return 0;
}

inline int bind_weight(const Weight& weight, int number, const TVMFFIAny& arg) {
  const DLTensor* t = typed_tensor(arg, weight.name, weight.element, WEIGHT_ALIGNMENT);
  if (!t) return -1;
  if (ffi::elements(t) != weight.elements)
    return ffi::raise("ValueError", "%s: %lld elements, %lld are expected", weight.name, (long long)ffi::elements(t), (long long)weight.elements);
  gpu().index = t->device.device_id;
  buffers().weights[number] = ffi::data(t);
  return 0;
}

}  // namespace cuda
}  // namespace kg
