// The step's ragged batch and the paged key/value cache, as abi.md lays them out.
#pragma once
#include "numeric.h"
#include "team.h"

namespace kg {

constexpr int PAGE = 16;  // tokens of a page

// Request rows of a step: row r owns token rows query_start[r] .. query_start[r+1].
struct Batch {
  int tokens, requests;
  const int32_t* query_start;
  const int32_t* seq_len;
  const int32_t* slot;

  bool padding(int r) const { return slot[r] < 0 || seq_len[r] <= 0; }
  // Position of the row's first new token; token t stands (t - query_start[r]) further.
  int first_position(int r) const { return seq_len[r] - (query_start[r + 1] - query_start[r]); }
};

struct Place {
  int request, position;  // position < 0: a padding token
};

// Which request a token row belongs to, and where it stands in it.
KG_INLINE Place locate(const Batch& batch, int token) {
  int low = 0, high = batch.requests;  // query_start[low] <= token < query_start[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (batch.query_start[middle] <= token ? low : high) = middle;
  }
  if (batch.padding(low)) return {low, -1};
  return {low, batch.first_position(low) + token - batch.query_start[low]};
}

// One layer's keys and values in the page pool.
template <class T, int KV_HEADS, int D>
struct Cache {
  static constexpr size_t side = (size_t)KV_HEADS * D * PAGE;  // elements of K, and of V
  static constexpr size_t layer_bytes = 2 * side * sizeof(T);

  uint8_t* pages;
  size_t page_bytes;
  int place;                 // layer place within a page
  const int32_t* block_table;  // [requests, max_pages]
  int max_pages;

  int page(int request, int index) const { return block_table[(size_t)request * max_pages + index]; }
  T* keys(int page, int head) const {
    return reinterpret_cast<T*>(pages + page * page_bytes + place * layer_bytes) + (size_t)head * D * PAGE;
  }
  T* values(int page, int head) const { return keys(page, head) + side; }

  // Element places within the blocks of one head: bfloat16 keeps pairs of d (K) or of tokens (V)
  // beside each other.
  static constexpr int key_at(int token, int d) {
    return sizeof(T) == 2 ? d / 2 * 2 * PAGE + token * 2 + d % 2 : d * PAGE + token;
  }
  static constexpr int value_at(int token, int d) {
    return sizeof(T) == 2 ? token / 2 * 2 * D + d * 2 + token % 2 : token * D + d;
  }
};

// Kernel: stores keys and values of the step's tokens.
//   fill  (int t, int kv_head, int position, T* key, T* value): the two rows of D elements
// Padding tokens, and tokens whose page was not given (entry 0), write nothing.
template <class T, int KV_HEADS, int D, class Fill>
void cache_write(const Worker& me, const Batch& batch, const Cache<T, KV_HEADS, D>& cache, const Fill& fill) {
  const Range mine = me.share(batch.tokens * KV_HEADS);
  alignas(64) T key[D], value[D];
  for (int i = mine.begin; i < mine.end; ++i) {
    const int t = i / KV_HEADS, head = i % KV_HEADS;
    const Place at = locate(batch, t);
    if (at.position < 0) continue;
    const int page = cache.page(at.request, at.position / PAGE), token = at.position % PAGE;
    if (page == 0) continue;
    fill(t, head, at.position, key, value);
    T* const k = cache.keys(page, head);
    T* const v = cache.values(page, head);
    for (int d = 0; d < D; ++d) k[cache.key_at(token, d)] = key[d];
    for (int d = 0; d < D; ++d) v[cache.value_at(token, d)] = value[d];
  }
}

// The same where the cache is narrower than the rows: `fill` gives Row, of which the cache keeps what
// is left of it once it is divided by its scale.
template <class Row, class T, int KV_HEADS, int D, class Fill>
void cache_write_scaled(const Worker& me, const Batch& batch, const Cache<T, KV_HEADS, D>& cache, const float* scales, const Fill& fill) {
  const auto narrowed = [&](int t, int head, int position, T* key, T* value) {
    Row wide_key[D], wide_value[D];
    fill(t, head, position, wide_key, wide_value);
    for (int d = 0; d < D; ++d) key[d] = from_float<T>(to_float(wide_key[d]) / scales[0]);
    for (int d = 0; d < D; ++d) value[d] = from_float<T>(to_float(wide_value[d]) / scales[1]);
  };
  cache_write(me, batch, cache, narrowed);
}

}  // namespace kg
