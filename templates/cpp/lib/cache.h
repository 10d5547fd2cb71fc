// The paged cache: where a token's keys and values lie inside its page (docs/abi.md).
#pragma once
#include "numeric.h"
#include "step.h"

namespace kg {

// Bytes from a layer's keys to its values, and the element of (head, dim, token) in either.
template <class T, int KV_HEADS, int DIM>
struct PageLayout {
  static constexpr int pair = sizeof(T) == 2 ? 2 : 1;  // bfloat16: two neighbours share 32 bits
  static constexpr int head = PAGE_TOKENS * DIM;       // elements of one head's keys (or values)
  static constexpr size_t values = (size_t)KV_HEADS * head * sizeof(T);

  static KG_INLINE int key(int h, int d, int token) {
    return h * head + (d / pair * PAGE_TOKENS + token) * pair + d % pair;
  }
  static KG_INLINE int value(int h, int d, int token) {
    return h * head + (token / pair * DIM + d) * pair + token % pair;
  }
};

// Stores the keys and values [KV_HEADS * DIM] of one token.
template <class T, int KV_HEADS, int DIM, class Keys, class Values>
KG_INLINE void insert_row(const PageSlot& at, const Keys* keys, const Values* values) {
  using Layout = PageLayout<T, KV_HEADS, DIM>;
  T* const k = reinterpret_cast<T*>(at.page);
  T* const v = reinterpret_cast<T*>(at.page + Layout::values);
  for (int h = 0; h < KV_HEADS; ++h) {
    for (int d = 0; d < DIM; ++d) {
      k[Layout::key(h, d, at.at)] = from_float<T>(to_float(keys[h * DIM + d]));
      v[Layout::value(h, d, at.at)] = from_float<T>(to_float(values[h * DIM + d]));
    }
  }
}

}  // namespace kg
