// Rows of a table that is stored row by row or in panels (docs/abi.md).
#pragma once
#include "rows.h"

namespace kg {

// Row `id` of a table [ROWS, WIDTH]; zeros for other ids.
template <class T, bool PANELS, int ROWS, int WIDTH>
class TableRow {
 public:
  TableRow(const T* table, int32_t id) : inside_(id >= 0 && id < ROWS) {
    if (!inside_) return;
    if constexpr (PANELS) {
      at_ = panel_row<WIDTH>(table, id).first;
    } else {
      at_ = table + (size_t)id * WIDTH;
    }
  }
  float operator[](int i) const {
    if (!inside_) return 0.0f;
    if constexpr (PANELS) return to_float(PanelRow<T, WIDTH>{at_}[i]);
    return to_float(at_[i]);
  }

 private:
  bool inside_;
  const T* at_ = nullptr;
};

}  // namespace kg
