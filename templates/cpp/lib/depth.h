// Mixing over depth: what a row of each source says, and the weights that follow.
//
// Sums have 16 partial results like every reduction of a row (rows.h).
#pragma once
#include "rows.h"

namespace kg {

// Sum of row(i) * vector(i) over the root of mean(row(i)^2) + eps, i < N.
template <int N, class Row, class Vector>
KG_INLINE float depth_score(const Row& row, const Vector& vector, float eps) {
  const float dot = row_sum<N>([&](int i) { return row(i) * vector(i); });
  const float square = row_mean<N>([&](int i) { return row(i) * row(i); });
  return dot * rsqrt(square + eps);
}

// Softmax over N sources.
template <int N>
KG_INLINE void depth_weights(const float (&score)[N], float (&weight)[N]) {
  float top = score[0], total = 0.0f;
  for (int s = 1; s < N; ++s) top = larger(top, score[s]);
  for (int s = 0; s < N; ++s) total += weight[s] = exp(score[s] - top);
  for (int s = 0; s < N; ++s) weight[s] /= total;
}

}  // namespace kg
