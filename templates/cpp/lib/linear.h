// linear: out = finish(prologue(x) W^T), W packed in panels of 32 outputs.
//
// An output is one vector lane that adds its K products one after the other, k ascending (of packed
// weights: the products of a group, then the scaled groups): its bits depend on K and the dtypes
// alone, not on T, threads or tile. Work is cut by panels, so that each
// thread streams its own weights once, and with many rows also by chunks of rows.
#pragma once
#include <type_traits>

#include "numeric.h"
#include "packed.h"
#include "team.h"

namespace kg {

constexpr int PANEL = 32;       // outputs side by side in a weight panel
constexpr int ROW_CHUNK = 48;       // rows of one unit of work: the panel is in L2 by then
constexpr int BLOCK_BYTES = 8192;   // K is done in blocks of so many bytes: a block of panels stays in L2
constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

namespace detail {

// How K lies in a panel: elements of a panel and up to some k, and the block of k done at a time.
template <class Weight, int K>
struct Panel {
  static constexpr int padded = ceil_div(K, 2) * 2;
  static constexpr int k_block = BLOCK_BYTES / (int)sizeof(Weight);
  static constexpr size_t at(int k) { return (size_t)k * PANEL; }
  static constexpr size_t size = at(padded);
};

template <class C, class S, int GROUP, bool Z, bool F, int K>
struct Panel<Packed<C, S, GROUP, Z, F>, K> {
  using Weight = Packed<C, S, GROUP, Z, F>;
  static constexpr int group = GROUP ? GROUP : ceil_div(K, Weight::word) * Weight::word;
  static constexpr int padded = ceil_div(K, group) * group;
  static constexpr int k_block = ceil_div(BLOCK_BYTES / 2, group) * group;
  static constexpr size_t at(int k) { return (size_t)(k / group) * Weight::group_bytes(group); }
  static constexpr size_t size = at(padded) + (F ? PANEL * sizeof(float) : 0);
};

}  // namespace detail

// Activation rows as the inner loop wants them: bfloat16 where the machine multiplies bfloat16, else
// float32 (widening is exact). Rows are an odd number of cache lines apart, so that the same column
// of all rows of a tile never falls into one cache set.
template <class Act, class Weight, int K>
struct Rows {
  static constexpr bool narrow = std::is_same<Weight, bf16>::value || IsPacked<Weight>::value;
  static constexpr bool dot2 = KG_DOT2 && std::is_same<Act, bf16>::value && narrow;
  using Element = std::conditional_t<dot2, bf16, float>;
  static constexpr int padded = detail::Panel<Weight, K>::padded;
  static constexpr int lines = ceil_div(padded * (int)sizeof(Element), 64) | 1;
  static constexpr int stride = lines * 64 / (int)sizeof(Element);
  static constexpr size_t bytes(int rows) { return (size_t)rows * lines * 64; }
};

// Register tile: `rows` rows by `vectors` half panels, within the register file.
constexpr int MAX_ROWS = KG_AVX512 ? 12 : 5;
constexpr int vectors_for(int rows) {
  return KG_AVX512 ? (rows > 6 ? 2 : 4) : (rows > 2 ? 1 : rows > 1 ? 2 : 4);
}

namespace detail {

template <class Weight>
struct Step;  // how two consecutive k of one half panel are read

template <>
struct Step<bf16> {
  static constexpr int half = 32, pair = 64;  // elements to the other half, to the next two k
  static KG_INLINE F16 even(const bf16* w) { return load_even(w); }
  static KG_INLINE F16 odd(const bf16* w) { return load_odd(w); }
};

template <>
struct Step<float> {
  static constexpr int half = 16, pair = 64;
  static KG_INLINE F16 even(const float* w) { return load(w); }
  static KG_INLINE F16 odd(const float* w) { return load(w + PANEL); }
};

// out[r][lane] (+)= sum over k of x[r][k] w[lane][k], for R rows and V half panels; vector v belongs
// to panel v/2, `panel` elements apart, and its results go to out + (v/2) * MAX_ROWS * 32.
template <int R, int V, int STRIDE, class Element, class Weight>
__attribute__((noinline)) void tile(const Element* x, const Weight* w, size_t panel, int pairs,
                                    size_t ahead, bool resume, float* out) {
  using S = Step<Weight>;
  const auto place = [&](int r, int v) { return out + (v / 2 * MAX_ROWS + r) * PANEL + v % 2 * LANES; };
  F16 acc[R][V];
  KG_UNROLL for (int r = 0; r < R; ++r) {
    KG_UNROLL for (int v = 0; v < V; ++v) acc[r][v] = resume ? load(place(r, v)) : zero();
  }
  for (int i = 0; i < pairs; ++i, x += 2, w += S::pair) {
    if (ahead != 0) {
      KG_UNROLL for (int v = 0; v < V; ++v) {
        const Weight* at = w + v / 2 * panel + v % 2 * S::half + ahead;
        __builtin_prefetch(at, 0, 2);
        if (sizeof(Weight) == 4) __builtin_prefetch(at + PANEL, 0, 2);
      }
    }
#if KG_DOT2
    if constexpr (std::is_same<Element, bf16>::value) {
      __m512i pair[V];
      KG_UNROLL for (int v = 0; v < V; ++v) pair[v] = _mm512_loadu_si512(w + v / 2 * panel + v % 2 * S::half);
      KG_UNROLL for (int r = 0; r < R; ++r) {
        KG_UNROLL for (int v = 0; v < V; ++v) acc[r][v] = dot2(acc[r][v], pair[v], x + r * STRIDE);
      }
      continue;
    } else
#endif
    {
      F16 lane[V];
      KG_UNROLL for (int v = 0; v < V; ++v) lane[v] = S::even(w + v / 2 * panel + v % 2 * S::half);
      KG_UNROLL for (int r = 0; r < R; ++r) {
        const F16 even = splat(x[r * STRIDE]);
        KG_UNROLL for (int v = 0; v < V; ++v) acc[r][v] = fma(even, lane[v], acc[r][v]);
      }
      const Weight* again = w;  // AVX2 has no register to keep the raw weights: read them again
      if (!KG_AVX512) __asm__("" : "+r"(again));
      KG_UNROLL for (int v = 0; v < V; ++v) lane[v] = S::odd(again + v / 2 * panel + v % 2 * S::half);
      KG_UNROLL for (int r = 0; r < R; ++r) {
        const F16 odd = splat(x[r * STRIDE + 1]);
        KG_UNROLL for (int v = 0; v < V; ++v) acc[r][v] = fma(odd, lane[v], acc[r][v]);
      }
    }
  }
  KG_UNROLL for (int r = 0; r < R; ++r) {
    KG_UNROLL for (int v = 0; v < V; ++v) store(place(r, v), acc[r][v]);
  }
}

// The same of packed weights: the products of a group are added by themselves, then scaled. HALF: half
// panel that the first vector belongs to.
template <class P, int R, int V, int STRIDE, int HALF, class Element>
__attribute__((noinline)) void packed_tile(const Element* x, const uint8_t* w, size_t panel, int pairs,
                                           size_t ahead, bool resume, float* out) {
  using Scale = typename P::Scale;
  constexpr bool as_pairs = !std::is_same<Element, float>::value;
  const auto place = [&](int r, int v) { return out + (v / 2 * MAX_ROWS + r) * PANEL + v % 2 * LANES; };
  const auto part = [&](const uint8_t* from, int v, int bytes) { return from + v / 2 * panel + (v % 2 + HALF) * bytes; };
  const int words = (P::group ? P::group / 2 : pairs) * 2 / P::word;
  for (int left = pairs; left > 0; left -= words * P::word / 2, resume = true) {
    F16 acc[R][V];
    I16 zeros[V];
    KG_UNROLL for (int v = 0; v < V; ++v) {
      zeros[v] = zero_points<P, as_pairs>(part(w + PANEL * Scale::bytes, v, LANES));
      KG_UNROLL for (int r = 0; r < R; ++r) acc[r][v] = zero();
    }
    const uint8_t* at = w + P::header;
    for (int i = 0; i < words; ++i, at += PANEL * 4) {
      if (ahead != 0) {
        KG_UNROLL for (int v = 0; v < V; ++v) __builtin_prefetch(part(at, v, 64) + ahead, 0, 2);
      }
      KG_UNROLL for (int j = 0; j < P::word / 2; ++j, x += 2) {
        KG_UNROLL for (int v = 0; v < V; ++v) {
          const I16 raw = shifted(load_words(part(at, v, 64)), j * P::Code::bits);
#if KG_DOT2
          if constexpr (as_pairs) {
            const __m512i pair = element_pair<P>(raw, zeros[v]);
            KG_UNROLL for (int r = 0; r < R; ++r) acc[r][v] = dot2(acc[r][v], pair, x + r * STRIDE);
          } else
#endif
          {
            const F16 even = element<P>(raw, zeros[v]);
            KG_UNROLL for (int r = 0; r < R; ++r) acc[r][v] = fma(splat(x[r * STRIDE]), even, acc[r][v]);
            const F16 odd = element<P>(shifted(raw, 16), zeros[v]);
            KG_UNROLL for (int r = 0; r < R; ++r) acc[r][v] = fma(splat(x[r * STRIDE + 1]), odd, acc[r][v]);
          }
        }
      }
    }
    KG_UNROLL for (int v = 0; v < V; ++v) {
      const F16 scale = Scale::at(part(w, v, LANES * Scale::bytes));
      KG_UNROLL for (int r = 0; r < R; ++r) {
        store(place(r, v), fma(acc[r][v], scale, resume ? load(place(r, v)) : zero()));
      }
    }
    w = at;
  }
}

// A register tile that begins with half HALF of a panel.
template <int R, int V, int STRIDE, int HALF, class Element, class Weight>
KG_INLINE void tile_from(const Element* x, const Weight* w, size_t panel, int pairs, size_t ahead, bool resume,
                         float* out) {
  if constexpr (IsPacked<Weight>::value) {
    packed_tile<Weight, R, V, STRIDE, HALF>(x, &w->byte, panel, pairs, ahead, resume, out + HALF * LANES);
  } else {
    tile<R, V, STRIDE>(x, w + HALF * Step<Weight>::half, panel, pairs, ahead, resume, out + HALF * LANES);
  }
}

// Finished sums times the factors of a panel.
KG_INLINE void apply_factors(float* out, const float* factors, int rows) {
  for (int half = 0; half < PANEL; half += LANES) {
    const F16 factor = load(factors + half);
    for (int r = 0; r < rows; ++r) store(out + r * PANEL + half, load(out + r * PANEL + half) * factor);
  }
}

// `rows` (run time) rows by `panels` (1 or 2) panels, in as few register tiles as fit.
template <int R, int STRIDE, class Element, class Weight>
KG_INLINE void tiles(int rows, int panels, const Element* x, const Weight* w, size_t panel, int pairs,
                     size_t ahead, bool resume, float* out) {
  if constexpr (R > 0) {
    if (rows != R) return tiles<R - 1, STRIDE>(rows, panels, x, w, panel, pairs, ahead, resume, out);
    constexpr int V = vectors_for(R);
    if (V == 4 && panels == 2) return tile_from<R, 4, STRIDE, 0>(x, w, panel, pairs, ahead, resume, out);
    for (int p = 0; p < panels; ++p, w += panel, out += MAX_ROWS * PANEL) {
      if constexpr (V == 1) {
        tile_from<R, 1, STRIDE, 0>(x, w, panel, pairs, ahead, resume, out);
        tile_from<R, 1, STRIDE, 1>(x, w, panel, pairs, ahead, resume, out);
      } else {
        tile_from<R, 2, STRIDE, 0>(x, w, panel, pairs, ahead, resume, out);
      }
    }
  }
}

}  // namespace detail

// N columns of a product, and what finishes them. With two matrices of N rows each (gate and up) the
// epilogue sees both results.
//   finish  (int t, int n0, const float* acc, width): columns n0 .. n0+width of row t; `width` is a
//           compile-time constant (32, or what is left in the last panel);
//           with two matrices (int t, int n0, const float* first, const float* second, width)
template <int N, bool PAIRED, class Weight, class Finish>
struct Columns {
  static constexpr int n = N, units = ceil_div(N, PANEL);
  static constexpr bool paired = PAIRED;
  const Weight* first;
  const Weight* second;
  const Finish& finish;
};
template <int N, class Weight, class Finish>
Columns<N, false, Weight, Finish> columns(const Weight* w, const Finish& finish) {
  return {w, nullptr, finish};
}
template <int N, class Weight, class Finish>
Columns<N, true, Weight, Finish> columns(const Weight* first, const Weight* second, const Finish& finish) {
  return {first, second, finish};
}

namespace detail {

// The units `work` (column panel by row chunk) of one group of columns.
template <class R, class In, int N, bool PAIRED, class Weight, class Finish>
void run_columns(const typename R::Element* x, int rows, int chunks, Range work,
                 const Columns<N, PAIRED, Weight, Finish>& group) {
  constexpr size_t panel = In::size;
  constexpr int k_block = In::k_block;
  constexpr int k_blocks = ceil_div(R::padded, k_block);
  constexpr int tile_size = 2 * MAX_ROWS * PANEL;
  // From a panel to the one that shares its tile: the next, or the same of the other matrix.
  const size_t beside = PAIRED ? ((uintptr_t)group.second - (uintptr_t)group.first) / sizeof(Weight) : panel;

  alignas(64) float acc[k_blocks > 1 ? ceil_div(ROW_CHUNK, MAX_ROWS) * tile_size : tile_size];
  for (int unit = work.begin; unit < work.end;) {
    const int column = unit / chunks, first = unit % chunks * ROW_CHUNK;
    const int count = rows - first < ROW_CHUNK ? rows - first : ROW_CHUNK;
    // Few rows: two panels at a time, for more weights in flight.
    const int taken = !PAIRED && chunks == 1 && unit + 1 < work.end ? 2 : 1;
    const int panels = PAIRED ? 2 : taken, next = unit + taken;
    const int tile_rows = ceil_div(count, ceil_div(count, MAX_ROWS));
    for (int b = 0; b < k_blocks; ++b) {
      const int k0 = b * k_block;
      const int pairs = (R::padded - k0 < k_block ? R::padded - k0 : k_block) / 2;
      const Weight* const from = group.first + column * panel + In::at(k0);
      // Multiplying the first rows, fetch the weights that come next: the block below or the next
      // panels. One or two rows are no faster for it: memory is busy all the time.
      const bool last = b + 1 == k_blocks;
      const bool fetch = count > 2 && (!last || (next < work.end && next / chunks != column));
      const size_t ahead = !fetch ? 0 : last ? taken * panel - In::at(k0) : In::at(k_block);
      float* out = acc;
      for (int r = 0; r < count; r += tile_rows, out += k_blocks > 1 ? tile_size : 0) {
        const int n = count - r < tile_rows ? count - r : tile_rows, t0 = first + r;
        tiles<MAX_ROWS, R::stride>(n, panels, x + (size_t)t0 * R::stride + k0, from, beside, pairs,
                                   r == 0 ? ahead : 0, b > 0, out);
        if (!last) continue;
        if constexpr (IsFactored<Weight>::value) {
          for (int p = 0; p < panels; ++p) {
            const Weight* const end = group.first + column * panel + p * beside + In::at(R::padded);
            apply_factors(out + p * MAX_ROWS * PANEL, (const float*)end, n);
          }
        }
        const auto finish = [&](int n0, const float* a, auto width) {
          for (int t = 0; t < n; ++t, a += PANEL) {
            if constexpr (PAIRED) {
              group.finish(t0 + t, n0, a, a + MAX_ROWS * PANEL, width);
            } else {
              group.finish(t0 + t, n0, a, width);
            }
          }
        };
        for (int p = 0; p < taken; ++p) {
          const int n0 = (column + p) * PANEL;
          const float* const a = out + p * MAX_ROWS * PANEL;
          if (n0 + PANEL <= N) finish(n0, a, std::integral_constant<int, PANEL>{});
          if constexpr (N % PANEL != 0) {
            if (n0 + PANEL > N) finish(n0, a, std::integral_constant<int, N % PANEL>{});
          }
        }
      }
    }
    unit = next;
  }
}

}  // namespace detail

// One kernel, called by every thread of the team: products of one prepared row with several groups of
// columns, whose panels are shared out as if they were one matrix.
//   K         inputs
//   rows      T, number of activation rows
//   scratch   Rows<Act, Weight, K>::bytes(rows) bytes shared by the team, 64-byte aligned
//   prologue  (int t, Element* row): writes row[0..K) of activation row t
template <class Act, class Weight, int K, class Prologue, class... Groups>
void linear(const Worker& me, int rows, void* scratch, const Prologue& prologue, const Groups&... groups) {
  using R = Rows<Act, Weight, K>;
  using Element = typename R::Element;

  // Prologue. A single row is cheaper to compute on every thread than to wait for.
  alignas(64) Element own[R::stride];
  Element* const x = rows == 1 ? own : static_cast<Element*>(scratch);
  const Range mine = rows == 1 ? Range{0, 1} : me.share(rows);
  for (int t = mine.begin; t < mine.end; ++t) {
    Element* const row = x + (size_t)t * R::stride;
    for (int k = K; k < R::padded; ++k) row[k] = Element{};
    prologue(t, row);
  }
  if (rows > 1) me.sync();

  const int chunks = ceil_div(rows, ROW_CHUNK);
  const Range work = me.share((0 + ... + Groups::units) * chunks);
  int base = 0;
  const auto run = [&](const auto& group) {
    const int end = base + group.units * chunks;
    const Range part{work.begin > base ? work.begin - base : 0, (work.end < end ? work.end : end) - base};
    base = end;
    if (part.begin < part.end) detail::run_columns<R, detail::Panel<Weight, K>>(x, rows, chunks, part, group);
  };
  (run(groups), ...);
}

}  // namespace kg
