// Attention over the paged cache: grouped heads, causal, optional window, optional sinks.
//
// A query row meets its keys page by page (16 tokens), in absolute order, with an online softmax in
// float32. Two arrangements of the same arithmetic exist: `one` puts the 16 tokens of a page into the
// lanes (decode: one query token, its heads share the reading of K and V), `many` puts 16 query rows
// into the lanes (prefill). Per output element both do the same operations in the same order:
//   score   = sum over d of q[d] k[d] by fma, d ascending, then times scale * log2(e)
//   peak'   = max(peak, scores of the page);  weight = 2^(score - peak')
//   total   = total * 2^(peak - peak') + weights, added as the tree of sum_lanes
//   acc[d]  = acc[d] * 2^(peak - peak'), then fma(weight, v[d], acc[d]), token by token
// and a key outside the causal window changes no bit, whatever memory holds there. So decode equals
// prefill bit for bit, under any chunking and batching.
#pragma once
#include <type_traits>

#include "cache.h"
#include "packed.h"

namespace kg {

// 16 numbers of an 8-bit cache. A NaN stays one.
KG_INLINE F16 load(const e4m3* p) {
  const I16 raw = load_bytes(reinterpret_cast<const uint8_t*>(p));
  return select(equal(whole(raw & 0x7fu), splat(127.0f)), splat(__builtin_nanf("")), E4M3::value(raw));
}

namespace attention_detail {

constexpr int GROUP = 4;      // query heads that `one` carries at a time
constexpr int TILES = 2;      // tiles of 16 query rows that `many` carries at a time
constexpr int TOKENS = KG_AVX512 ? 16 : 4;  // tokens per register block of `many`
constexpr float NOTHING = -__builtin_inff();

// Softmax weights need a finite peak: where no key has been seen yet, any value serves.
KG_INLINE float finite(float peak) { return peak == NOTHING ? 0.0f : peak; }
KG_INLINE F16 finite(F16 peak) { return select(equal(peak, splat(NOTHING)), zero(), peak); }

template <class Act, class KV>
using Query = std::conditional_t<KG_DOT2 && std::is_same<Act, bf16>::value && std::is_same<KV, bf16>::value, bf16, float>;

// One query token: COUNT query heads that share K and V.
template <class Act, class KV, int D, int COUNT>
struct One {
  static constexpr int VECTORS = (D + LANES - 1) / LANES;
  static constexpr bool SHORT = D < LANES;  // not one whole vector in a row
  // The last vector of a row ends with the row: where 16 does not divide D it overlaps the one before.
  static constexpr int at(int v) { return SHORT ? 0 : v * LANES + LANES <= D ? v * LANES : D - LANES; }
  using Q = Query<Act, KV>;

  const Q* q;  // [COUNT][D]
  float peak[COUNT], total[COUNT];
  alignas(64) float weight[COUNT][PAGE];
  alignas(64) float acc[COUNT][VECTORS][LANES];

  // Scores of the 16 tokens of a page, one vector per head.
  KG_INLINE void scores(const KV* k, F16 (&s)[COUNT]) const {
    KG_UNROLL for (int h = 0; h < COUNT; ++h) s[h] = zero();
    for (int d = 0; d < D; d += 2) {
#if KG_DOT2
      if constexpr (std::is_same<Q, bf16>::value) {
        const __m512i pair = _mm512_loadu_si512(k + d * PAGE);
        KG_UNROLL for (int h = 0; h < COUNT; ++h) s[h] = dot2(s[h], pair, q + h * D + d);
        continue;
      } else
#endif
      {
        F16 even, odd;
        if constexpr (sizeof(KV) == 2) {
          even = load_even(k + d * PAGE), odd = load_odd(k + d * PAGE);
        } else {
          even = load(k + d * PAGE), odd = load(k + (d + 1) * PAGE);
        }
        KG_UNROLL for (int h = 0; h < COUNT; ++h) {
          s[h] = fma(splat((float)q[h * D + d + 1]), odd, fma(splat((float)q[h * D + d]), even, s[h]));
        }
      }
    }
  }

  // One page, of which tokens first .. last-1 count.
  KG_INLINE void page(const KV* k, const KV* v, int first, int last, float scale) {
    F16 s[COUNT];
    scores(k, s);
    const bool whole = last - first == PAGE;
    for (int h = 0; h < COUNT; ++h) {
      s[h] = s[h] * splat(scale);
      if (!whole) s[h] = select(lanes((1u << last) - (1u << first)), s[h], splat(NOTHING));
      const float top = max_lanes(s[h]);
      const float before = peak[h];
      peak[h] = before < top ? top : before;
      const float base = finite(peak[h]);
      const F16 w = exp2_weight(s[h] - splat(base));
      store(weight[h], w);
      if (before < peak[h]) {
        const float shrink = exp2_weight(before - base);
        total[h] *= shrink;
        for (int i = 0; i < VECTORS; ++i) store(acc[h][i], load(acc[h][i]) * splat(shrink));
      }
      total[h] += sum_lanes(w);
    }
    for (int i = 0; i < VECTORS; ++i) {
      F16 sum[COUNT];
      KG_UNROLL for (int h = 0; h < COUNT; ++h) sum[h] = load(acc[h][i]);
      const auto add = [&](F16 row, int token) {
        KG_UNROLL for (int h = 0; h < COUNT; ++h) sum[h] = fma(splat(weight[h][token]), row, sum[h]);
      };
      const auto row = [&](int token) {
        if constexpr (SHORT) {
          alignas(64) float part[LANES] = {};
          for (int d = 0; d < D; ++d) part[d] = to_float(sizeof(KV) == 2 ? v[token / 2 * 2 * D + d * 2 + token % 2] : v[token * D + d]);
          return load(part);
        } else if constexpr (sizeof(KV) == 2) {
          const KV* pairs = v + token / 2 * 2 * D + at(i) * 2;
          return token % 2 ? load_odd(pairs) : load_even(pairs);
        } else {
          return load(v + token * D + at(i));
        }
      };
      if (whole) {
        KG_UNROLL for (int token = 0; token < PAGE; ++token) add(row(token), token);
      } else {
        for (int token = first; token < last; ++token) add(row(token), token);
      }
      KG_UNROLL for (int h = 0; h < COUNT; ++h) store(acc[h][i], sum[h]);
    }
  }

  // `out` has room for whole vectors.
  KG_INLINE void result(int h, float* out) const {
    const F16 by = splat(total[h] == 0.0f ? 1.0f : total[h]);
    for (int i = 0; i < VECTORS; ++i) store(out + at(i), load(acc[h][i]) / by);
  }
};

// 16 query rows in the lanes. `q` and `acc` are transposed: [D][16].
template <class Act, class KV, int D>
struct Many {
  using Q = Query<Act, KV>;

  alignas(64) Q q[D * LANES];  // bfloat16: [D/2][16][2]
  alignas(64) float acc[D * LANES];
  alignas(64) float peak[LANES], total[LANES], position[LANES];
  int lowest = 0, highest = 0;  // positions in this tile

  // k: float [D][16] or, where dot2 reads it, the page itself; v: float [16][D].
  // CHECK: some key of the page is out of reach of some row.
  template <bool CHECK, int WINDOW, class K>
  KG_INLINE void page(const K* k, const float* v, int first_token, float scale) {
    alignas(64) float score[PAGE * LANES];
    for (int j0 = 0; j0 < PAGE; j0 += TOKENS) {
      F16 s[TOKENS];
      KG_UNROLL for (int j = 0; j < TOKENS; ++j) s[j] = zero();
      if constexpr (std::is_same<K, float>::value) {
        for (int d = 0; d < D; ++d) {
          const F16 x = load(q + d * LANES);
          KG_UNROLL for (int j = 0; j < TOKENS; ++j) s[j] = fma(splat(k[d * PAGE + j0 + j]), x, s[j]);
        }
      } else {
#if KG_DOT2
        for (int d = 0; d < D; d += 2) {
          const __m512i x = _mm512_load_si512(q + d * LANES);
          KG_UNROLL for (int j = 0; j < TOKENS; ++j) s[j] = dot2(s[j], x, k + d * PAGE + (j0 + j) * 2);
        }
#endif
      }
      KG_UNROLL for (int j = 0; j < TOKENS; ++j) store(score + (j0 + j) * LANES, s[j] * splat(scale));
    }
    Mask16 seen[CHECK ? PAGE : 1];
    if constexpr (CHECK) {
      const F16 at = load(position), from = at - splat((float)WINDOW), until = at + splat(1.0f);
      for (int j = 0; j < PAGE; ++j) {
        const F16 key = splat((float)(first_token + j));
        seen[j] = less(key, until);
        if (WINDOW > 0) seen[j] = both(seen[j], less(from, key));
        store(score + j * LANES, select(seen[j], load(score + j * LANES), splat(NOTHING)));
      }
    }
    const F16 top = tree(score, [](F16 a, F16 b) { return max(a, b); });
    const F16 before = load(peak);
    const F16 now = select(less(before, top), top, before);
    const F16 base = finite(now);
    for (int j = 0; j < PAGE; ++j) {
      store(score + j * LANES, exp2_weight(load(score + j * LANES) - base));
    }
    F16 sum = load(total);
    if (bits(less(before, now)) != 0) {
      const F16 shrink = exp2_weight(before - base);  // 1 where the peak stayed: times 1 is exact
      const F16 factor = select(less(before, now), shrink, splat(1.0f));
      sum = sum * factor;
      for (int d = 0; d < D; ++d) store(acc + d * LANES, load(acc + d * LANES) * factor);
    }
    store(peak, now);
    store(total, sum + tree(score, [](F16 a, F16 b) { return a + b; }));
    constexpr int WIDTH = KG_AVX512 && D % 8 == 0 ? 8 : D % 4 == 0 ? 4 : 2;  // divides D
    for (int d0 = 0; d0 < D; d0 += WIDTH) {
      F16 o[WIDTH];
      KG_UNROLL for (int d = 0; d < WIDTH; ++d) o[d] = load(acc + (d0 + d) * LANES);
      for (int j = 0; j < PAGE; ++j) {
        const F16 w = load(score + j * LANES);
        KG_UNROLL for (int d = 0; d < WIDTH; ++d) {
          const F16 more = fma(splat(v[j * D + d0 + d]), w, o[d]);
          if constexpr (CHECK) {
            o[d] = select(seen[j], more, o[d]);
          } else {
            o[d] = more;
          }
        }
      }
      KG_UNROLL for (int d = 0; d < WIDTH; ++d) store(acc + (d0 + d) * LANES, o[d]);
    }
  }

  // Joins the 16 tokens as sum_lanes joins 16 lanes: token j meets j+8, then j+4, j+2, j+1.
  template <class Join>
  static KG_INLINE F16 tree(const float* rows, const Join& join) {
    F16 part[8];
    KG_UNROLL for (int j = 0; j < 8; ++j) part[j] = join(load(rows + j * LANES), load(rows + (j + 8) * LANES));
    KG_UNROLL for (int half = 4; half > 0; half /= 2) {
      KG_UNROLL for (int j = 0; j < half; ++j) part[j] = join(part[j], part[j + half]);
    }
    return part[0];
  }
};

// [X/2][Y][2] bfloat16 -> [X][Y] float: how both K and V pages are widened.
template <int X, int Y>
KG_INLINE void widen(const bf16* from, float* to) {
  for (int x = 0; x < X; x += 2, from += 2 * Y, to += 2 * Y) {
    for (int y = 0; y + LANES <= Y; y += LANES) {
      store(to + y, load_even(from + 2 * y));
      store(to + Y + y, load_odd(from + 2 * y));
    }
    for (int y = Y / LANES * LANES; y < Y; ++y) {
      to[y] = to_float(from[2 * y]);
      to[Y + y] = to_float(from[2 * y + 1]);
    }
  }
}

// An 8-bit page as floats, in its own order.
template <int X, int Y>
KG_INLINE void widen(const e4m3* from, float* to) {
  static_assert(X * Y % LANES == 0);
  for (int i = 0; i < X * Y; i += LANES) store(to + i, load(from + i));
}

}  // namespace attention_detail

// Kernel: attention of every token row of the batch over its request's cache, which must already
// hold the step's own keys and values.
//   Act      activation dtype; with bfloat16 activations and cache, dot2 machines use it for the scores
//   WINDOW   0 = every earlier position; W = positions t-W+1 .. t
//   query    (int t, int head, int position, Act* row): the D values of the query row, rotated
//   sink     (int head) -> float: an extra logit without value, or nullptr for none
//   out      (int t, int head, const float* row): takes the D results; zeros for padding tokens
template <class Act, class KV, int HEADS, int KV_HEADS, int D, int WINDOW, class QueryRow, class Sink, class Out>
struct Attention {
  static_assert(D % 2 == 0 && HEADS % KV_HEADS == 0, "head sizes that the cache layout allows");
  static constexpr int PER = HEADS / KV_HEADS;  // query heads of a kv head
  static constexpr bool SINKS = !std::is_same<Sink, std::nullptr_t>::value;
  using Q = attention_detail::Query<Act, KV>;

  const Batch& batch;
  const Cache<KV, KV_HEADS, D>& cache;
  float scale;  // of scores, in units of log2
  const QueryRow& query;
  const Sink& sink;
  const Out& out;

  static int first_key(int position) { return WINDOW > 0 && position >= WINDOW ? position - WINDOW + 1 : 0; }

  // Peak and total before any key: a sink is a logit that only counts in the total.
  void begin(int head, float& peak, float& total) const {
    if constexpr (SINKS) {
      peak = sink(head) * poly::LOG2E;
      total = 1.0f;
    } else {
      peak = attention_detail::NOTHING;
      total = 0.0f;
    }
  }

  void put_query(int t, int head, int position, Q* row) const {
    if constexpr (std::is_same<Q, Act>::value) {
      query(t, head, position, row);
    } else {
      Act narrow[D];
      query(t, head, position, narrow);
      for (int d = 0; d < D; ++d) row[d] = to_float(narrow[d]);
    }
  }

  // Heads head .. head+COUNT-1 (of one kv head) of the only new token of request r.
  template <int COUNT>
  void one(int r, int t, int head) const {
    const int position = batch.seq_len[r] - 1, start = first_key(position), kv = head / PER;
    alignas(64) Q q[COUNT * D];
    attention_detail::One<Act, KV, D, COUNT> state;
    state.q = q;
    for (int h = 0; h < COUNT; ++h) {
      put_query(t, head + h, position, q + h * D);
      begin(head + h, state.peak[h], state.total[h]);
    }
    __builtin_memset(state.acc, 0, sizeof state.acc);
    for (int p = start / PAGE; p <= position / PAGE; ++p) {
      const int page = cache.page(r, p), token = p * PAGE;
      const int first = start > token ? start - token : 0;
      const int last = position - token < PAGE ? position - token + 1 : PAGE;
      state.page(cache.keys(page, kv), cache.values(page, kv), first, last, scale);
    }
    alignas(64) float row[D < LANES ? LANES : D];
    for (int h = 0; h < COUNT; ++h) {
      state.result(h, row);
      out(t, head + h, row);
    }
  }

  // Query rows row0 .. row0+count-1 of request r and kv head kv; row = token * PER + head in group.
  void many(int r, int kv, int row0, int count) const {
    constexpr int TILES = attention_detail::TILES;
    const int t0 = batch.query_start[r], p0 = batch.first_position(r);
    attention_detail::Many<Act, KV, D> tile[TILES];
    const int tiles = (count + LANES - 1) / LANES;
    for (int i = 0; i < tiles * LANES; ++i) {
      auto& to = tile[i / LANES];
      const int lane = i % LANES, row = row0 + (i < count ? i : count - 1);  // spare lanes repeat the last row
      const int t = row / PER, head = kv * PER + row % PER;
      Q q[D];
      put_query(t0 + t, head, p0 + t, q);
      constexpr int pack = 4 / (int)sizeof(Q);  // values of one query row that stay beside each other
      for (int d = 0; d < D; d += pack) __builtin_memcpy(to.q + d * LANES + lane * pack, q + d, 4);
      begin(head, to.peak[lane], to.total[lane]);
      to.position[lane] = (float)(p0 + t);
      if (lane == 0) to.lowest = p0 + t;
      to.highest = p0 + t;
    }
    for (int i = 0; i < tiles; ++i) __builtin_memset(tile[i].acc, 0, sizeof tile[i].acc);

    alignas(64) float wide_k[sizeof(KV) != 4 && sizeof(Q) == 4 ? D * PAGE : 1];
    alignas(64) float wide_v[sizeof(KV) != 4 ? D * PAGE : 1];
    for (int p = first_key(tile[0].lowest) / PAGE; p <= tile[tiles - 1].highest / PAGE; ++p) {
      const int page = cache.page(r, p), token = p * PAGE;
      const KV* const k = cache.keys(page, kv);
      const KV* const v = cache.values(page, kv);
      if constexpr (sizeof(KV) != 4) {
        if constexpr (sizeof(Q) == 4) attention_detail::widen<D, PAGE>(k, wide_k);
        attention_detail::widen<PAGE, D>(v, wide_v);
      }
      for (int i = 0; i < tiles; ++i) {
        auto& to = tile[i];
        if (token > to.highest || token + PAGE <= first_key(to.lowest)) continue;
        const bool check = token + PAGE - 1 > to.lowest || token < first_key(to.highest);
        const auto run = [&](const auto* keys, const float* values) {
          if (check) {
            to.template page<true, WINDOW>(keys, values, token, scale);
          } else {
            to.template page<false, WINDOW>(keys, values, token, scale);
          }
        };
        if constexpr (sizeof(KV) == 4) {
          run(k, v);
        } else if constexpr (sizeof(Q) == 4) {
          run(static_cast<const float*>(wide_k), wide_v);
        } else {
          run(k, wide_v);
        }
      }
    }

    alignas(64) float rows[LANES][D];
    for (int i = 0; i < count; i += LANES) {
      auto& from = tile[i / LANES];
      const F16 sum = load(from.total);
      const F16 by = select(equal(sum, zero()), splat(1.0f), sum);
      for (int d = 0; d < D; ++d) {
        alignas(64) float lane[LANES];
        store(lane, load(from.acc + d * LANES) / by);
        for (int j = 0; j < LANES; ++j) rows[j][d] = lane[j];
      }
      for (int j = 0; j < LANES && i + j < count; ++j) {
        const int row = row0 + i + j;
        out(t0 + row / PER, kv * PER + row % PER, rows[j]);
      }
    }
  }

  int length(int r) const { return batch.query_start[r + 1] - batch.query_start[r]; }

  // Prefill: blocks of query rows, handed out as threads become free, since their costs differ.
  void prefill(const Worker& me) const {
    constexpr int BLOCK = attention_detail::TILES * LANES;
    int ticket = me.next(), before = 0;
    for (int r = 0; r < batch.requests; ++r) {
      if (length(r) <= 1 || batch.padding(r)) continue;
      const int rows = length(r) * PER, blocks = (rows + BLOCK - 1) / BLOCK;
      for (; ticket < before + blocks * KV_HEADS; ticket = me.next()) {
        const int i = ticket - before, row = (blocks - 1 - i / KV_HEADS) * BLOCK;  // the longest first
        many(r, i % KV_HEADS, row, rows - row < BLOCK ? rows - row : BLOCK);
      }
      before += blocks * KV_HEADS;
    }
  }

  // Pages that the one new token of a decoding request reads; 0 for every other request.
  int pages(int r) const {
    if (length(r) != 1 || batch.padding(r)) return 0;
    const int position = batch.seq_len[r] - 1;
    return position / PAGE - first_key(position) / PAGE + 1;
  }

  // Decode: every thread takes a contiguous run of (request, head), cut so that all read as many pages.
  void decode(const Worker& me) const {
    long long total = 0, before = 0;
    for (int r = 0; r < batch.requests; ++r) total += (long long)pages(r) * HEADS;
    const long long from = total * me.id / me.count, until = total * (me.id + 1) / me.count;
    for (int r = 0; r < batch.requests; ++r) {
      const int each = pages(r), t = batch.query_start[r];
      if (each == 0) continue;
      for (int h = 0, run; h < HEADS; h += run, before += (long long)run * each) {
        // The heads that start in this thread's share, within one kv head.
        run = 1;
        if (before < from) continue;
        if (before >= until) return;
        const int group = PER - h % PER;
        while (run < group && run < attention_detail::GROUP && before + (long long)run * each < until) ++run;
        switch (run) {
          case 1: one<1>(r, t, h); break;
          case 2: one<2>(r, t, h); break;
          case 3: one<3>(r, t, h); break;
          default: one<4>(r, t, h);
        }
      }
    }
  }

  void run(const Worker& me) const {
    for (int r = 0; r < batch.requests; ++r) {
      if (!batch.padding(r)) continue;
      alignas(64) const float nothing[D] = {};
      for (int t = batch.query_start[r] + me.id; t < batch.query_start[r + 1]; t += me.count) {
        for (int h = 0; h < HEADS; ++h) out(t, h, nothing);
      }
    }
    prefill(me);
    decode(me);
  }
};

template <class Act, int HEADS, int WINDOW, class KV, int KV_HEADS, int D, class QueryRow, class Sink, class Out>
void attention(const Worker& me, const Batch& batch, const Cache<KV, KV_HEADS, D>& cache, float scale,
               const QueryRow& query, const Sink& sink, const Out& out) {
  const Attention<Act, KV, HEADS, KV_HEADS, D, WINDOW, QueryRow, Sink, Out> kernel{
      batch, cache, scale * poly::LOG2E, query, sink, out};
  kernel.run(me);
}

}  // namespace kg
