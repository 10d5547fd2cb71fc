// route: which experts a token goes to, and with what weight.
//
// Everything of a row happens on one thread in a fixed order, so that the bits depend on the row
// alone. A NaN is no value to compare with: its row takes experts 0, 1, … and NaN weights.
#pragma once
#include "numeric.h"
#include "rows.h"

namespace kg {

// ln(1 + e^x), within a few ulp of either end.
KG_INLINE float softplus(float x) {
  const float small = exp(-__builtin_fabsf(x)), one = 1.0f + small;
  // What rounding 1 + small has lost comes back as the quotient: exact to an ulp or two.
  const float log1p = one == 1.0f ? small : log(one) * (small / (one - 1.0f));
  return (x > 0.0f ? x : 0.0f) + log1p;
}
KG_INLINE float sqrt_softplus(float x) { return __builtin_sqrtf(softplus(x)); }

// Softmax of a row as 1 / sum and the largest logit: exp(x - top) * scale is a score.
struct Softmax {
  float top, scale;
  KG_INLINE float operator()(float x) const { return exp(x - top) * scale; }
};
template <int N, class Value>
KG_INLINE Softmax softmax(const Value& value) {
  const float top = row_max<N>(value);
  return {top, 1.0f / row_sum<N>([&](int i) { return exp(value(i) - top); })};
}

template <int N, class Value>
KG_INLINE bool any_nan(const Value& value) {
  bool found = false;
  for (int i = 0; i < N; ++i) found |= value(i) != value(i);
  return found;
}

// ids[0 .. TOP): numbers of the largest value(i), i < N, largest first, of equal ones the lower.
template <int N, int TOP, class Value>
KG_INLINE void best_of(const Value& value, int32_t* ids) {
  float best[TOP];
  int held = 0;
  for (int i = 0; i < N; ++i) {
    const float x = value(i);
    if (held == TOP && !(x > best[TOP - 1])) continue;
    int at = held < TOP ? held++ : TOP - 1;
    for (; at > 0 && x > best[at - 1]; --at) {
      best[at] = best[at - 1];
      ids[at] = ids[at - 1];
    }
    best[at] = x;
    ids[at] = i;
  }
}

// The same, where only members of the KEPT best of GROUPS groups have a chance: a group is worth the
// sum of its BEST largest values.
template <int N, int TOP, int GROUPS, int KEPT, int BEST, class Value>
KG_INLINE void choose_experts(const Value& value, int32_t* ids) {
  if (any_nan<N>(value)) {
    for (int j = 0; j < TOP; ++j) ids[j] = j;
    return;
  }
  if constexpr (GROUPS == 1) {
    best_of<N, TOP>(value, ids);
  } else {
    constexpr int each = N / GROUPS;
    float worth[GROUPS];
    for (int g = 0; g < GROUPS; ++g) {
      int32_t top[BEST];
      best_of<each, BEST>([&](int i) { return value(g * each + i); }, top);
      worth[g] = value(g * each + top[0]);
      for (int j = 1; j < BEST; ++j) worth[g] += value(g * each + top[j]);
    }
    int32_t kept[KEPT];
    best_of<GROUPS, KEPT>([&](int g) { return worth[g]; }, kept);
    bool live[GROUPS] = {};
    for (int j = 0; j < KEPT; ++j) live[kept[j]] = true;
    best_of<N, TOP>([&](int i) { return live[i / each] ? value(i) : -__builtin_inff(); }, ids);
  }
}

// weights[j] = score of expert ids[j], over their sum where RENORMALISE, times factor.
template <int N, int TOP, bool RENORMALISE, class Value, class Score>
KG_INLINE void weigh_experts(const Value& logit, const int32_t* ids, const Score& score, float factor,
                             float* weights) {
  float sum = 0.0f;
  for (int j = 0; j < TOP; ++j) sum += weights[j] = score(logit(ids[j]));
  // No division by zero where every score has vanished.
  const float scale = RENORMALISE ? factor / (sum + 1e-20f) : factor;
  const float all = any_nan<N>(logit) ? __builtin_nanf("") : scale;
  for (int j = 0; j < TOP; ++j) weights[j] *= all;
}

// Softmax over the chosen logits alone.
template <int N, int TOP, class Value>
KG_INLINE void weigh_by_softmax(const Value& logit, const int32_t* ids, float factor, float* weights) {
  float top = logit(ids[0]);
  for (int j = 1; j < TOP; ++j) top = larger(logit(ids[j]), top);
  weigh_experts<N, TOP, true>(logit, ids, [&](float x) { return exp(x - top); }, factor, weights);
}

}  // namespace kg
