// Row programs: reductions over one row with a fixed order, and table rows.
//
// A reduction keeps 16 running lanes (element i goes to lane i mod 16) and folds them as the tree
// 8, 4, 2, 1: the same bits in every instruction set and wherever it is inlined.
#pragma once
#include "numeric.h"

namespace kg {

KG_INLINE float larger(float a, float b) { return a > b ? a : b; }
KG_INLINE float smaller(float a, float b) { return a < b ? a : b; }

namespace detail {
template <int WIDTH, class Element, class Fold>
KG_INLINE float row_fold(float start, const Element& element, const Fold& fold) {
  alignas(64) float lane[LANES];
  for (int l = 0; l < LANES; ++l) lane[l] = start;
  constexpr int whole = WIDTH / LANES * LANES;
  for (int i = 0; i < whole; i += LANES) {
    for (int l = 0; l < LANES; ++l) lane[l] = fold(lane[l], element(i + l));
  }
  for (int l = 0; l < WIDTH - whole; ++l) lane[l] = fold(lane[l], element(whole + l));
  for (int step = LANES / 2; step > 0; step /= 2) {
    for (int l = 0; l < step; ++l) lane[l] = fold(lane[l], lane[l + step]);
  }
  return lane[0];
}
}  // namespace detail

// Sum, mean and maximum of element(i), i = 0 ... WIDTH - 1.
template <int WIDTH, class Element>
KG_INLINE float row_sum(const Element& element) {
  return detail::row_fold<WIDTH>(0.0f, element, [](float a, float b) { return a + b; });
}
template <int WIDTH, class Element>
KG_INLINE float row_mean(const Element& element) {
  return row_sum<WIDTH>(element) * (1.0f / WIDTH);
}
template <int WIDTH, class Element>
KG_INLINE float row_max(const Element& element) {
  return detail::row_fold<WIDTH>(-__builtin_inff(), element, larger);
}

// Row `id` of a table [ROWS, WIDTH] stored row by row or in panels of 32 rows; zeros for other ids.
template <class T, bool PANELS, int ROWS, int WIDTH>
class TableRow {
 public:
  TableRow(const T* table, int32_t id) {
    if (id < 0 || id >= ROWS) return;
    inside_ = true;
    if constexpr (PANELS) {
      constexpr int padded = (WIDTH + 1) / 2 * 2;
      at_ = table + (size_t)(id / 32) * padded * 32 + (id % 32) * pair;
    } else {
      at_ = table + (size_t)id * WIDTH;
    }
  }
  float operator[](int i) const {
    if (!inside_) return 0.0f;
    if constexpr (PANELS) return to_float(at_[(size_t)(i / pair) * 32 * pair + i % pair]);
    return to_float(at_[i]);
  }

 private:
  static constexpr int pair = sizeof(T) == 2 ? 2 : 1;  // bfloat16 panels keep two columns side by side
  const T* at_ = nullptr;
  bool inside_ = false;
};

}  // namespace kg
