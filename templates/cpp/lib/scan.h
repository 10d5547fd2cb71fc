// Scans: what a layer carries from step to step of each request, and the kernels that carry it on.
//
// The tokens of a request are done one after the other, in the order of their positions, so results do
// not depend on how a prompt is cut or who else is in the step. All sums are plain loops over columns
// (never over lanes), each rounding where it stands: the same bits in every instruction set.
#pragma once
#include "cache.h"
#include "route.h"
#include "rows.h"

namespace kg {

// Where the states of the step's requests lie (abi.md): one page holds those of all layers.
struct StatePages {
  uint8_t* pages;
  size_t page_bytes;
  const int32_t *from, *to;      // [requests] page before and after the step's tokens; 0: none
  const int32_t *mark, *mark_at; // [requests] page that keeps the state after `mark_at` tokens; 0: none

  template <class T>
  T* at(int page, size_t offset) const { return reinterpret_cast<T*>(pages + (size_t)page * page_bytes + offset); }
};

// One request row of a step as a scan sees it.
struct ScanRow {
  int first, count;              // token rows
  int before;                    // tokens that the request had before the step
  int from, to, mark, mark_after; // pages; the mark is taken after so many of the step's tokens

  static ScanRow of(const Batch& batch, const StatePages& states, int r) {
    const int first = batch.query_start[r], count = batch.padding(r) ? 0 : batch.query_start[r + 1] - first;
    const int before = batch.seq_len[r] - count, mark_after = states.mark_at[r] - before;
    const bool marks = states.mark[r] > 0 && mark_after > 0 && mark_after < count;
    return {first, count, before, before > 0 ? states.from[r] : 0, states.to[r], marks ? states.mark[r] : 0, mark_after};
  }
};

// Kernel: y[t][c] = sum over j of w[c][j] x[t - W + 1 + j][c], j ascending; the state is the last W - 1 rows of x.
//   out  (int t, int c, float y)
template <class T, int C, int W, class Out>
void short_conv(const Worker& me, const Batch& batch, const StatePages& states, size_t offset, const T* x,
                const float* w, const Out& out) {
  constexpr int BLOCK = 64, BLOCKS = (C + BLOCK - 1) / BLOCK, BACK = W - 1;
  const Range mine = me.share(batch.requests * BLOCKS);
  for (int item = mine.begin; item < mine.end; ++item) {
    const ScanRow row = ScanRow::of(batch, states, item / BLOCKS);
    const int c0 = item % BLOCKS * BLOCK, columns = C - c0 < BLOCK ? C - c0 : BLOCK;
    if (row.count == 0) continue;
    T back[BACK][BLOCK] = {};  // the rows just before the next token, the oldest first
    if (row.from > 0) {
      const T* const old = states.at<T>(row.from, offset);
      for (int j = 0; j < BACK; ++j) for (int c = 0; c < columns; ++c) back[j][c] = old[j * C + c0 + c];
    }
    const auto keep = [&](int page) {
      T* const kept = states.at<T>(page, offset);
      for (int j = 0; j < BACK; ++j) for (int c = 0; c < columns; ++c) kept[j * C + c0 + c] = back[j][c];
    };
    for (int n = 0; n < row.count; ++n) {
      const T* const now = x + (size_t)(row.first + n) * C + c0;
      for (int c = 0; c < columns; ++c) {
        const float* const tap = w + (size_t)(c0 + c) * W;
        float sum = tap[0] * to_float(back[0][c]);
        for (int j = 1; j < BACK; ++j) sum += tap[j] * to_float(back[j][c]);
        out(row.first + n, c0 + c, sum + tap[BACK] * to_float(now[c]));
      }
      for (int c = 0; c < columns; ++c) {
        for (int j = 0; j + 1 < BACK; ++j) back[j][c] = back[j + 1][c];
        back[BACK - 1][c] = now[c];
      }
      if (row.mark > 0 && n + 1 == row.mark_after) keep(row.mark);
    }
    if (row.to > 0) keep(row.to);
  }
}

// Inputs of a delta scan: rows of tokens, heads beside each other; `Act` is the dtype of q, k and v.
template <class Act>
struct DeltaInputs {
  const Act *q, *k, *v;
  const float *f, *beta, *rate, *bias;
};

// Kernel: the gated delta rule of ops/delta_scan.py, one head of one request at a time.
//   BOUND  the lowest logarithm of a decay, or 0 for none: then it comes from a softplus
//   out    (int t, int head, float* row): takes the V results
template <class Act, int H, int K, int V, bool BOUNDED, class Out>
void delta_scan(const Worker& me, const Batch& batch, const StatePages& states, size_t offset,
                const DeltaInputs<Act>& in, float scale, float eps, float bound, const Out& out) {
  const Range mine = me.share(batch.requests * H);
  for (int item = mine.begin; item < mine.end; ++item) {
    const ScanRow row = ScanRow::of(batch, states, item / H);
    const int h = item % H;
    if (row.count == 0) continue;
    alignas(64) float s[K * V], q[K], k[K], left[K], read[V], made[V];
    const auto page = [&](int number) { return states.at<float>(number, offset) + (size_t)h * K * V; };
    if (row.from > 0) {
      __builtin_memcpy(s, page(row.from), sizeof s);
    } else {
      __builtin_memset(s, 0, sizeof s);
    }
    const float rate = exp(in.rate[h]);
    for (int n = 0; n < row.count; ++n) {
      const size_t t = row.first + n, at = (t * H + h) * K;
      for (int i = 0; i < K; ++i) q[i] = to_float(in.q[at + i]), k[i] = to_float(in.k[at + i]);
      const float by_q = rsqrt(row_sum<K>([&](int i) { return q[i] * q[i]; }) + eps) * scale;
      const float by_k = rsqrt(row_sum<K>([&](int i) { return k[i] * k[i]; }) + eps);
      for (int i = 0; i < K; ++i) {
        const float z = in.f[at + i] + in.bias[h * K + i];
        q[i] *= by_q, k[i] *= by_k;
        left[i] = exp(BOUNDED ? bound * sigmoid(rate * z) : -rate * softplus(z));
      }
      for (int j = 0; j < V; ++j) read[j] = 0.0f, made[j] = 0.0f;
      for (int i = 0; i < K; ++i) {
        float* const line = s + i * V;
        for (int j = 0; j < V; ++j) {
          line[j] *= left[i];
          read[j] += line[j] * k[i];
        }
      }
      const float learn = sigmoid(in.beta[t * H + h]);
      const Act* const v = in.v + (t * H + h) * V;
      for (int j = 0; j < V; ++j) read[j] = learn * (to_float(v[j]) - read[j]);
      for (int i = 0; i < K; ++i) {
        float* const line = s + i * V;
        for (int j = 0; j < V; ++j) {
          line[j] += k[i] * read[j];
          made[j] += line[j] * q[i];
        }
      }
      out((int)t, h, made);
      if (row.mark > 0 && n + 1 == row.mark_after) __builtin_memcpy(page(row.mark), s, sizeof s);
    }
    if (row.to > 0) __builtin_memcpy(page(row.to), s, sizeof s);
  }
}

}  // namespace kg
