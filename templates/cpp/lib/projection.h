// Projections of one prepared row: any number of weight matrices side by side in one kernel.
#pragma once
#include "linear.h"

namespace kg {

// N columns of a projection; with two matrices their results meet in the epilogue (gate and up).
template <int N, class Weight, class Epilogue>
struct Columns {
  static constexpr int n = N;
  static constexpr int units = ceil_div(N, PANEL);
  const Weight* first;
  const Weight* second;  // null where one matrix is enough
  const Epilogue& finish;
};
template <int N, class Weight, class Epilogue>
Columns<N, Weight, Epilogue> columns(const Weight* w, const Epilogue& finish) { return {w, nullptr, finish}; }
template <int N, class Weight, class Epilogue>
Columns<N, Weight, Epilogue> columns(const Weight* gate, const Weight* up, const Epilogue& finish) { return {gate, up, finish}; }

namespace detail {

template <class Layout, class Weight, int N, class Epilogue, bool PAIRED>
void project_group(const typename Layout::Element* x, int rows, Range work, int chunks, const Columns<N, Weight, Epilogue>& group) {
  constexpr int pairs = Layout::padded / 2;
  constexpr size_t panel = (size_t)Layout::padded * PANEL;
  // Distance to the panel that a tile takes together with the first: the next one, or the other matrix's.
  const size_t beside = PAIRED ? ((uintptr_t)group.second - (uintptr_t)group.first) / sizeof(Weight) : panel;
  alignas(64) float acc[2 * MAX_ROWS * PANEL];
  for (int u = work.begin; u < work.end;) {
    const int unit = u / chunks, first = u % chunks * CHUNK;
    const int count = rows - first < CHUNK ? rows - first : CHUNK;
    const int step = !PAIRED && chunks == 1 && u + 1 < work.end ? 2 : 1;
    const int panels = PAIRED ? 2 : step;
    const int tile_rows = ceil_div(count, ceil_div(count, MAX_ROWS));
    const Weight* const w = group.first + (size_t)unit * panel;
    for (int r = 0; r < count; r += tile_rows) {
      const size_t ahead = r == 0 && count > 2 && u + step < work.end ? step * panel : 0;
      const int t0 = first + r, n = count - r < tile_rows ? count - r : tile_rows;
      tiles<MAX_ROWS, Layout::stride>(n, panels, x + (size_t)t0 * Layout::stride, w, beside, pairs, ahead, false, acc);
      const auto finish = [&](int n0, const float* a, auto width) {
        for (int t = 0; t < n; ++t) {
          if constexpr (PAIRED) {
            group.finish(t0 + t, n0, a + t * PANEL, a + (MAX_ROWS + t) * PANEL, width);
          } else {
            group.finish(t0 + t, n0, a + t * PANEL, width);
          }
        }
      };
      for (int p = 0; p < step; ++p) {
        const int n0 = (unit + p) * PANEL;
        if (n0 + PANEL <= N) {
          finish(n0, acc + p * MAX_ROWS * PANEL, std::integral_constant<int, PANEL>{});
        } else if constexpr (N % PANEL != 0) {
          finish(n0, acc + p * MAX_ROWS * PANEL, std::integral_constant<int, N % PANEL>{});
        }
      }
    }
    u += step;
  }
}

template <class Layout, int N, class Weight, class Epilogue>
void run_group(const typename Layout::Element* x, int rows, Range work, int chunks, const Columns<N, Weight, Epilogue>& group) {
  constexpr bool paired = !std::is_invocable<const Epilogue&, int, int, const float*, std::integral_constant<int, PANEL>>::value;
  project_group<Layout, Weight, N, Epilogue, paired>(x, rows, work, chunks, group);
}

}  // namespace detail

// Called by every thread of the team. `prologue(t, row)` writes row[0 ... K) of activation row t; each group
// finishes its own columns. `scratch` holds Rows<Act, Weight, K>::bytes(rows).
template <class Act, class Weight, int K, class Prologue, class... Groups>
void project(const Worker& me, int rows, void* scratch, const Prologue& prologue, const Groups&... groups) {
  using Layout = Rows<Act, Weight, K>;
  using Element = typename Layout::Element;
  // One row is cheaper to compute on every thread than to wait for.
  alignas(64) Element own[Layout::stride];
  Element* const x = rows == 1 ? own : static_cast<Element*>(scratch);
  const Range mine = rows == 1 ? Range{0, 1} : me.share(rows);
  for (int t = mine.begin; t < mine.end; ++t) {
    Element* const row = x + (size_t)t * Layout::stride;
    if (K % 2) row[K] = Element{};
    prologue(t, row);
  }
  if (rows > 1) me.sync();
  const int chunks = ceil_div(rows, CHUNK);
  const Range work = me.share((0 + ... + Groups::units) * chunks);
  int base = 0;
  const auto run = [&](const auto& group) {
    using Group = std::decay_t<decltype(group)>;
    const int end = base + Group::units * chunks;
    const Range part{work.begin > base ? work.begin - base : 0, (work.end < end ? work.end : end) - base};
    base = end;
    if (part.begin < part.end) detail::run_group<Layout>(x, rows, part, chunks, group);
  };
  (run(groups), ...);
}

}  // namespace kg
