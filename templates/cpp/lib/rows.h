// Row programs: what a fused kernel that works on whole token rows is made of.
//
// Reductions over a row always use 16 partial results (element i goes to partial i mod 16, in order)
// joined by the tree of sum_lanes: the bits depend on the row's width alone.
#pragma once
#include "numeric.h"
#include "team.h"

namespace kg {

KG_INLINE float larger(float a, float b) { return a > b ? a : b; }
KG_INLINE float smaller(float a, float b) { return a < b ? a : b; }

// Sum over i < N of value(i), value returning float.
template <int N, class Value>
KG_INLINE float row_sum(const Value& value) {
  F16 sum = zero();
  alignas(64) float part[LANES];
  for (int i = 0; i + LANES <= N; i += LANES) {
    for (int j = 0; j < LANES; ++j) part[j] = value(i + j);
    sum = sum + load(part);
  }
  if constexpr (N % LANES != 0) {
    for (int j = 0; j < LANES; ++j) part[j] = j < N % LANES ? value(N - N % LANES + j) : 0.0f;
    sum = sum + load(part);
  }
  return sum_lanes(sum);
}

template <int N, class Value>
KG_INLINE float row_mean(const Value& value) {
  return row_sum<N>(value) * (1.0f / N);
}

// Largest value(i), i < N.
template <int N, class Value>
KG_INLINE float row_max(const Value& value) {
  F16 top = splat(-__builtin_inff());
  alignas(64) float part[LANES];
  for (int i = 0; i + LANES <= N; i += LANES) {
    for (int j = 0; j < LANES; ++j) part[j] = value(i + j);
    top = max(load(part), top);
  }
  if constexpr (N % LANES != 0) {
    for (int j = 0; j < LANES; ++j) part[j] = j < N % LANES ? value(N - N % LANES + j) : -__builtin_inff();
    top = max(load(part), top);
  }
  return max_lanes(top);
}

// Calls body(t) for this thread's share of the rows.
template <class Body>
KG_INLINE void for_rows(const Worker& me, int rows, const Body& body) {
  const Range mine = me.share(rows);
  for (int t = mine.begin; t < mine.end; ++t) body(t);
}

// Row `row` of a matrix with K columns that is stored in panels (abi.md): a tied embedding exists
// only as the head's panels, and is gathered from there.
template <class T, int K>
struct PanelRow {
  const T* first;
  KG_INLINE T operator[](int k) const {
    return sizeof(T) == 2 ? first[k / 2 * 64 + k % 2] : first[k * 32];
  }
};
template <int K, class T>
KG_INLINE PanelRow<T, K> panel_row(const T* panels, int row) {
  constexpr int padded = (K + 1) / 2 * 2;
  return {panels + (size_t)(row / 32) * padded * 32 + row % 32 * (sizeof(T) == 2 ? 2 : 1)};
}

}  // namespace kg
