// The buffers that a step works on: bound once by name, all of them on one GPU.
#pragma once
#include "buffer.h"
#include "device.h"

namespace kg {
namespace cuda {

using kg::Element;  // the generated tables name both
using kg::Weight;

enum Bound : uint32_t { LOGITS, SAMPLED, CACHE, WORKSPACE, LAST_SAMPLED, COUNTERS, RULES, LOGPROBS, MASKS, STATES, BOUND_COUNT };

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
  int64_t units[BOUND_COUNT];  // rows of logits and sampled, pages, bytes of the workspace, slots, counters, slots, rows, pages of states
};

inline Buffers& buffers() {
  static Buffers all{};
  return all;
}

// Reads a tensor argument: on the GPU of the other buffers, dense, aligned. Null with the error raised.
inline const DLTensor* gpu_tensor(const TVMFFIAny& arg, const char* name, unsigned alignment) {
  const DLTensor* t = dense_tensor(arg, name, kDLCUDA, alignment);
  const int gpu_index = gpu().index;
  if (!t || gpu_index < 0 || t->device.device_id == gpu_index) return t;
  ffi::raise("ValueError", "%s: lies on cuda:%d, other buffers on cuda:%d", name, t->device.device_id, gpu_index);
  return nullptr;
}

// The same, of one element type.
inline const DLTensor* typed_tensor(const TVMFFIAny& arg, const char* name, Element element, unsigned alignment) {
  const DLTensor* t = gpu_tensor(arg, name, alignment);
  return t && check_element(t, name, element) ? t : nullptr;
}

inline int bind_buffer(const Buffer& buffer, Bound which, const TVMFFIAny& arg) {
  const DLTensor* t = typed_tensor(arg, buffer.name, buffer.element, buffer.alignment);
  if (!t) return -1;
  const int64_t units = whole_units(t, buffer.name, buffer.unit);
  if (units < 0) return -1;
  gpu().index = t->device.device_id;
  buffers().bound[which] = ffi::data(t);
  buffers().units[which] = units;
  return 0;
}

inline int bind_weight(const Weight& weight, int number, const TVMFFIAny& arg) {
  const DLTensor* t = typed_tensor(arg, weight.name, weight.element, WEIGHT_ALIGNMENT);
  if (!t || check_elements(t, weight.name, weight.elements)) return -1;
  gpu().index = t->device.device_id;
  buffers().weights[number] = ffi::data(t);
  return 0;
}

}  // namespace cuda
}  // namespace kg
