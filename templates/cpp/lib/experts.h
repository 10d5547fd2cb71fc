// experts: products of rows with the matrices of the experts that each has chosen.
//
// A pair is a token and one of the experts that it goes to. An output is one vector lane that adds
// its K products one after the other, as in linear.h: its bits depend on K and the dtypes alone, not
// on which pairs are computed together. So two ways of cutting the work give the same bits:
//   by pairs   one after the other, for few of them: every thread streams its own columns
//   sorted     all pairs of an expert together, so that its weights are read once
#pragma once
#include "linear.h"

namespace kg {

// The stacks of one product: N columns of each of E experts; with two stacks (gate and up) the
// epilogue sees both results.
//   finish  (int pair, int n0, const float* acc, width), as in linear.h; with two stacks
//           (int pair, int n0, const float* first, const float* second, width)
template <int E, int N, int K, bool PAIRED, class Weight, class Finish>
struct Stacks {
  using In = detail::Panel<Weight, K>;
  static constexpr int experts = E, columns = N, units = ceil_div(N, PANEL);
  static constexpr size_t matrix = (size_t)units * In::size;  // elements; of packed weights bytes
  const Weight* first;
  const Weight* second;
  const Finish& finish;

  // The matrices of one expert with an epilogue for rows of its own.
  template <class Own>
  KG_INLINE Columns<N, PAIRED, Weight, Own> of(int expert, const Own& own) const {
    const size_t at = expert * matrix;
    return {first + at, PAIRED ? second + at : nullptr, own};
  }

  // What an expert that is not here adds: zeros, finished like everything else.
  void zeros(int pair, Range panels) const {
    static const float none[PANEL] = {};
    for (int p = panels.begin; p < panels.end; ++p) {
      const int n0 = p * PANEL;
      const auto done = [&](auto width) {
        if constexpr (PAIRED) {
          finish(pair, n0, none, none, width);
        } else {
          finish(pair, n0, none, width);
        }
      };
      if (n0 + PANEL <= N) done(std::integral_constant<int, PANEL>{});
      if constexpr (N % PANEL != 0) {
        if (n0 + PANEL > N) done(std::integral_constant<int, N % PANEL>{});
      }
    }
  }
};
template <int E, int N, int K, class Weight, class Finish>
Stacks<E, N, K, false, Weight, Finish> stacks(const Weight* w, const Finish& finish) {
  return {w, nullptr, finish};
}
template <int E, int N, int K, class Weight, class Finish>
Stacks<E, N, K, true, Weight, Finish> stacks(const Weight* first, const Weight* second, const Finish& finish) {
  return {first, second, finish};
}

namespace detail {

template <class R, int K, class Act>
KG_INLINE void copy_row(const Act* from, typename R::Element* row) {
  for (int k = 0; k < K; ++k) row[k] = from_float<typename R::Element>(to_float(from[k]));
  for (int k = K; k < R::padded; ++k) row[k] = typename R::Element{};
}

// One row times the panels `panels` of an expert, which calls finish(n0, acc…, width).
template <class R, class Group, class Finish>
KG_INLINE void one_row(const typename R::Element* row, int expert, Range panels, const Group& group,
                       const Finish& finish) {
  const auto own = [&](int, int n0, auto... rest) { finish(n0, rest...); };
  run_columns<R, typename Group::In>(row, 1, 1, panels, group.of(expert, own));
}

}  // namespace detail

// By pairs. Row of pair p: x + (p / SHARE) * K, where SHARE pairs read one row.
template <class Act, class Weight, int K, int TOP, int SHARE, class Group>
void experts_by_pairs(const Worker& me, int tokens, const Act* x, const int32_t* ids, const Group& group) {
  using R = Rows<Act, Weight, K>;
  alignas(64) typename R::Element row[R::stride];
  const Range work = me.share(tokens * TOP * Group::units);
  for (int at = work.begin, held = -1; at < work.end;) {
    const int pair = at / Group::units, first = at % Group::units;
    const int end = work.end - at < Group::units - first ? first + work.end - at : Group::units;
    at += end - first;
    const int expert = ids[pair];
    if (expert < 0 || expert >= Group::experts) {
      group.zeros(pair, {first, end});
      continue;
    }
    if (held != pair / SHARE) detail::copy_row<R, K>(x + (size_t)(held = pair / SHARE) * K, row);
    const auto finish = [&](int n0, auto... rest) { group.finish(pair, n0, rest...); };
    detail::one_row<R>(row, expert, {first, end}, group, finish);
  }
}

// By pairs, and the weighted results of a token's experts added up, best first; the group's epilogue
// gets (int token, int n0, const float* sum, width). One stack.
template <class Act, class Weight, int K, int TOP, class Group>
void experts_summed(const Worker& me, int tokens, const Act* x, const int32_t* ids, const float* weights,
                    const Group& group) {
  using R = Rows<Act, Weight, K>;
  alignas(64) typename R::Element row[R::stride];
  alignas(64) float sum[Group::units * PANEL];
  const Range work = me.share(tokens * Group::units);
  for (int at = work.begin; at < work.end;) {
    const int token = at / Group::units, first = at % Group::units;
    const int end = work.end - at < Group::units - first ? first + work.end - at : Group::units;
    at += end - first;
    for (int j = 0; j < TOP; ++j) {
      const int pair = token * TOP + j, expert = ids[pair];
      const float weight = weights[pair];
      const auto add = [&](int n0, const float* acc, auto width) {
        for (int i = 0; i < width; ++i) {
          const float y = weight * (acc ? acc[i] : 0.0f);
          sum[n0 + i] = j == 0 ? y : sum[n0 + i] + y;
        }
      };
      if (expert < 0 || expert >= Group::experts) {
        for (int p = first; p < end; ++p) add(p * PANEL, nullptr, std::integral_constant<int, PANEL>{});
        continue;
      }
      detail::copy_row<R, K>(x + (size_t)pair * K, row);
      detail::one_row<R>(row, expert, {first, end}, group, add);
    }
    for (int p = first; p < end; ++p) {
      const int n0 = p * PANEL;
      if (n0 + PANEL <= Group::columns) {
        group.finish(token, n0, sum + n0, std::integral_constant<int, PANEL>{});
      } else if constexpr (Group::columns % PANEL != 0) {
        group.finish(token, n0, sum + n0, std::integral_constant<int, Group::columns % PANEL>{});
      }
    }
  }
}

// Scratch of the sorted way: prepared rows of all pairs by expert, then the pair of each.
template <class R>
struct Sorted {
  typename R::Element* rows;
  int32_t* pair;
  static constexpr size_t bytes(int pairs) { return R::bytes(pairs) + ((size_t)pairs * 4 + 63) / 64 * 64; }
  Sorted(void* scratch, int pairs)
      : rows(static_cast<typename R::Element*>(scratch)),
        pair(reinterpret_cast<int32_t*>(static_cast<char*>(scratch) + R::bytes(pairs))) {}
};

constexpr int PANELS_AT_ONCE = 4;  // of one ticket: enough columns to be worth one, little enough to share out

// Sorted by expert; of an expert in the order of pairs.
template <class Act, class Weight, int K, int TOP, int SHARE, class Group>
void experts_sorted(const Worker& me, int tokens, const Act* x, const int32_t* ids, void* scratch,
                    const Group& group) {
  using R = Rows<Act, Weight, K>;
  constexpr int E = Group::experts, tickets = ceil_div(Group::units, PANELS_AT_ONCE);
  const int pairs = tokens * TOP;
  const Sorted<R> sorted(scratch, pairs);
  const auto expert_of = [&](int pair) { return ids[pair] < 0 || ids[pair] >= E ? E : ids[pair]; };

  // Every thread counts for itself; it places and prepares its own share of the pairs.
  int start[E + 2] = {};
  for (int p = 0; p < pairs; ++p) ++start[expert_of(p) + 1];
  for (int e = 0; e <= E; ++e) start[e + 1] += start[e];
  int next[E + 1];
  for (int e = 0; e <= E; ++e) next[e] = start[e];
  const Range mine = me.share(pairs);
  for (int p = 0; p < mine.end; ++p) {
    const int at = next[expert_of(p)]++;
    if (p < mine.begin) continue;
    sorted.pair[at] = p;
    detail::copy_row<R, K>(x + (size_t)(p / SHARE) * K, sorted.rows + (size_t)at * R::stride);
  }
  me.sync();

  int filled[E + 1], count = 0;
  for (int e = 0; e <= E; ++e) {
    if (start[e + 1] > start[e]) filled[count++] = e;
  }
  for (int ticket; (ticket = me.next()) < count * tickets;) {
    const int expert = filled[ticket / tickets], rows = start[expert + 1] - start[expert];
    const int from = ticket % tickets * PANELS_AT_ONCE;
    const int to = from + PANELS_AT_ONCE < Group::units ? from + PANELS_AT_ONCE : Group::units;
    const int32_t* const pair = sorted.pair + start[expert];
    if (expert == E) {
      for (int r = 0; r < rows; ++r) group.zeros(pair[r], {from, to});
      continue;
    }
    const int chunks = ceil_div(rows, ROW_CHUNK);
    const auto own = [&](int r, int n0, auto... rest) { group.finish(pair[r], n0, rest...); };
    detail::run_columns<R, typename Group::In>(sorted.rows + (size_t)start[expert] * R::stride, rows, chunks,
                           {from * chunks, to * chunks}, group.of(expert, own));
  }
}

}  // namespace kg
