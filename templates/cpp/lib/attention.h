// Attention over the paged cache: grouped heads, causal, optional window, optional sinks.
//
// Softmax runs online over pages in absolute order, starting with the first page that the query can see,
// 16 keys at a time: the bits of a result depend on the query's position alone, never on the batch, on
// chunking, or on which other queries share the work.
#pragma once
#include "cache.h"
#include "team.h"

namespace kg {

template <class T, int HEADS, int KV_HEADS, int DIM, int WINDOW>
struct Attention {
  static_assert(DIM % 2 == 0, "head dims are even");
  using Layout = PageLayout<T, KV_HEADS, DIM>;
  static constexpr int GROUP = HEADS / KV_HEADS;
  static constexpr int VECTORS = (DIM + LANES - 1) / LANES;
  static constexpr float LOG2E = 0x1.715476p+0f;

  // Scores of one query against the 16 keys of a page.
  static KG_INLINE F16 scores(const T* keys, const float* q) {
    F16 s = zero();
    if constexpr (sizeof(T) == 2) {
      for (int d = 0; d < DIM; d += 2) {
        const T* const pair = keys + d * PAGE_TOKENS;
        s = fma(splat(q[d]), load_even(pair), s);
        s = fma(splat(q[d + 1]), load_odd(pair), s);
      }
    } else {
      for (int d = 0; d < DIM; ++d) s = fma(splat(q[d]), load(keys + d * PAGE_TOKENS), s);
    }
    return s;
  }

  // One head of one query.
  static void head(const Step& step, const LayerCache& layer, int row, int position, int kv, float scale,
                   const float* sink, const float* q, float* out) {
    const int first = WINDOW && position >= WINDOW ? position - WINDOW + 1 : 0;
    float peak = -__builtin_inff(), mass = 0.0f;
    alignas(64) float acc[DIM] = {};
    for (int p = first / PAGE_TOKENS; p <= position / PAGE_TOKENS; ++p) {
      const uint8_t* const page = step.page(layer, row, p);
      const T* const keys = reinterpret_cast<const T*>(page) + kv * Layout::head;
      const T* const values = reinterpret_cast<const T*>(page + Layout::values) + kv * Layout::head;
      const int base = p * PAGE_TOKENS;
      const int lo = first > base ? first - base : 0;
      const int hi = position - base < PAGE_TOKENS - 1 ? position - base : PAGE_TOKENS - 1;
      const Mask16 seen = lanes((0xffffu >> (15 - hi)) & (0xffffu << lo));
      const F16 s = select(seen, scores(keys, q) * splat(scale * LOG2E), splat(-__builtin_inff()));
      const float top = max_lanes(s);
      const float higher = top > peak ? top : peak;
      const float fade = exp2_weight(peak - higher);
      const F16 weight = exp2_weight(s - splat(higher));
      peak = higher;
      mass = mass * fade + sum_lanes(weight);
      alignas(64) float w[LANES];
      store(w, weight);
      for (int d = 0; d < DIM; ++d) acc[d] *= fade;
      for (int j = lo; j <= hi; ++j) {
        for (int d = 0; d < DIM; ++d) acc[d] = __builtin_fmaf(w[j], to_float(values[Layout::value(0, d, j)]), acc[d]);
      }
    }
    float fade = 1.0f;
    if (sink) {
      const float s = *sink * LOG2E, higher = s > peak ? s : peak;
      fade = exp2_weight(peak - higher);
      mass = mass * fade + exp2_weight(s - higher);
    }
    const float norm = fade / mass;
    for (int d = 0; d < DIM; ++d) out[d] = acc[d] * norm;
  }

  template <class Query, class Act>
  static void token(const Step& step, const LayerCache& layer, int t, int kv, float scale, const float* sinks,
                    const Query& query, Act* out) {
    for (int h = kv * GROUP; h < (kv + 1) * GROUP; ++h) {
      Act* const o = out + ((size_t)t * HEADS + h) * DIM;
      const int row = step.rows[t];
      if (row < 0) {
        for (int d = 0; d < DIM; ++d) o[d] = Act{};
        continue;
      }
      alignas(64) float q[DIM], result[DIM];
      query(t, h, q);
      head(step, layer, row, step.positions[t], kv, scale, sinks ? sinks + h : nullptr, q, result);
      for (int d = 0; d < DIM; ++d) o[d] = from_float<Act>(result[d]);
    }
  }

  // Keys and values of the step's tokens are in the cache already.
  template <class Query, class Act>
  static void run(const Worker& me, const Step& step, const LayerCache& layer, float scale, const float* sinks,
                  const Query& query, Act* out) {
    const Range mine = me.share(step.tokens * KV_HEADS);
    for (int i = mine.begin; i < mine.end; ++i) token(step, layer, i / KV_HEADS, i % KV_HEADS, scale, sinks, query, out);
  }

  // One token a request: it is stored by the worker that then attends to it.
  template <class Query, class Insert, class Act>
  static void decode(const Worker& me, const Step& step, const LayerCache& layer, float scale, const float* sinks,
                     const Query& query, const Insert& insert, Act* out) {
    const Range mine = me.share(step.tokens * KV_HEADS);
    for (int i = mine.begin; i < mine.end; ++i) {
      const int t = i / KV_HEADS, kv = i % KV_HEADS;
      if (const PageSlot at = step.slot_of_token(layer, t); at.valid()) {
        alignas(64) float k[DIM], v[DIM];
        insert(t, kv, k, v);
        T* const keys = reinterpret_cast<T*>(at.page);
        T* const values = reinterpret_cast<T*>(at.page + Layout::values);
        for (int d = 0; d < DIM; ++d) {
          keys[Layout::key(kv, d, at.at)] = from_float<T>(k[d]);
          values[Layout::value(kv, d, at.at)] = from_float<T>(v[d]);
        }
      }
      token(step, layer, t, kv, scale, sinks, query, out);
    }
  }
};

}  // namespace kg
