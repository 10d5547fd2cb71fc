// Latent rows: one row a token in the cache, which all heads share as key and as value, and products
// of each head with a matrix of its own.
//
// Scores and sums of a (token, head) follow the positions in order, page by page, as attention.h does;
// nothing depends on the chunk, the batch or the thread.
#pragma once
#include "cache.h"
#include "rows.h"

namespace kg {

// One layer's rows in the page pool: [16 tokens][WIDTH].
template <class T, int WIDTH>
struct LatentCache {
  uint8_t* pages;
  size_t page_bytes;
  const int32_t* block_table;  // [requests, max_pages]
  int max_pages;

  int page(int request, int index) const { return block_table[(size_t)request * max_pages + index]; }
  T* row(int page, int token) const { return reinterpret_cast<T*>(pages + (size_t)page * page_bytes) + (size_t)token * WIDTH; }
};

// Kernel: stores the rows of the step's tokens. fill(int t, T* row) writes one.
// Padding tokens, and tokens whose page was not given (entry 0), write nothing.
template <class T, int WIDTH, class Fill>
void latent_write(const Worker& me, const Batch& batch, const LatentCache<T, WIDTH>& cache, const Fill& fill) {
  const Range mine = me.share(batch.tokens);
  for (int t = mine.begin; t < mine.end; ++t) {
    const Place at = locate(batch, t);
    if (at.position < 0) continue;
    const int page = cache.page(at.request, at.position / PAGE);
    if (page != 0) fill(t, cache.row(page, at.position % PAGE));
  }
}

// Kernel: attention of every token and head over its request's rows [latent RANK | beside WIDTH - RANK].
//   inner  [T, H, RANK], outer [T, H, X]: the last WIDTH - RANK columns count
//   scale  of scores, in units of log2
//   out    (int t, int head, const float* row): takes the RANK results; zeros for padding tokens
template <class Act, class T, int H, int RANK, int WIDTH, int X, class Out>
void latent_attention(const Worker& me, const Batch& batch, const LatentCache<T, WIDTH>& cache, const Act* inner,
                      const Act* outer, float scale, const Out& out) {
  constexpr int BESIDE = WIDTH - RANK;
  constexpr float NOTHING = -__builtin_inff();
  alignas(64) float q[WIDTH], made[RANK], score[PAGE];
  const Range mine = me.share(batch.tokens * H);
  for (int item = mine.begin; item < mine.end; ++item) {
    const int t = item / H, h = item % H;
    const Place at = locate(batch, t);
    for (int i = 0; i < RANK; ++i) q[i] = to_float(inner[(size_t)item * RANK + i]), made[i] = 0.0f;
    for (int i = 0; i < BESIDE; ++i) q[RANK + i] = to_float(outer[(size_t)item * X + X - BESIDE + i]);
    float peak = NOTHING, total = 0.0f;
    for (int p = 0; p * PAGE <= at.position; ++p) {
      const int page = cache.page(at.request, p);
      const int count = at.position - p * PAGE < PAGE ? at.position - p * PAGE + 1 : PAGE;
      float top = peak;
      for (int j = 0; j < count; ++j) {
        const T* const row = cache.row(page, j);
        score[j] = row_sum<WIDTH>([&](int i) { return q[i] * to_float(row[i]); }) * scale;
        top = top < score[j] ? score[j] : top;
      }
      if (peak < top) {  // never on NaN, which then reaches the sums
        const float shrink = peak == NOTHING ? 0.0f : exp2_weight(peak - top);
        total *= shrink;
        for (int i = 0; i < RANK; ++i) made[i] *= shrink;
        peak = top;
      }
      for (int j = 0; j < count; ++j) {
        const T* const row = cache.row(page, j);
        const float weight = exp2_weight(score[j] - (peak == NOTHING ? 0.0f : peak));
        total += weight;
        for (int i = 0; i < RANK; ++i) made[i] += weight * to_float(row[i]);
      }
    }
    const float by = total == 0.0f ? 1.0f : total;
    for (int i = 0; i < RANK; ++i) made[i] = made[i] / by;
    out(t, h, made);
  }
}

// Kernel: y[t][h][n] = sum over k of x[t][h][k] w[h], w[h] being [N][K], or [K][N] where ACROSS.
//   x    [T, H, X], of which the first K columns of a head count
//   out  (int t, int head, const float* row): takes the N results
template <class Act, class Weight, int H, int K, int N, int X, bool ACROSS, class Out>
void head_linear(const Worker& me, int tokens, const Act* x, const Weight* w, const Out& out) {
  alignas(64) float q[K], made[N];
  const Range mine = me.share(tokens * H);  // head by head: a matrix is used for all tokens before the next
  for (int item = mine.begin; item < mine.end; ++item) {
    const int t = item % tokens, h = item / tokens;
    const Act* const row = x + ((size_t)t * H + h) * X;
    const Weight* const matrix = w + (size_t)h * K * N;
    for (int k = 0; k < K; ++k) q[k] = to_float(row[k]);
    if constexpr (ACROSS) {
      for (int n = 0; n < N; ++n) made[n] = 0.0f;
      for (int k = 0; k < K; ++k) {
        for (int n = 0; n < N; ++n) made[n] += q[k] * to_float(matrix[(size_t)k * N + n]);
      }
    } else {
      for (int n = 0; n < N; ++n) {
        made[n] = row_sum<K>([&](int k) { return q[k] * to_float(matrix[(size_t)n * K + k]); });
      }
    }
    out(t, h, made);
  }
}

}  // namespace kg
