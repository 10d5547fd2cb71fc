// Sampling: logits -> ids, as abi.md defines it. Nothing here depends on threads, batch or padding:
// maxima do not care for order, and the masses of top-p are integers, whose sums do not either.
#pragma once
#include <climits>

#include "cache.h"

namespace kg {

// Gumbel noise of (seed, position, token): MurmurHash3-x86-32 of the 16-byte message, then
// -log(-log1p(-u)) with u = (word + 1/2) 2^-32.
class Noise {
 public:
  Noise(uint32_t seed_low, uint32_t seed_high, uint32_t position)
      : state_(mix(mix(mix(0, seed_low), seed_high), position)) {}

  KG_INLINE uint32_t word(uint32_t token) const {
    uint32_t h = mix(state_, token) ^ 16u;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
  }

  KG_INLINE float of(uint32_t token) const { return from_word(word(token)); }

  static constexpr float LARGEST = 23.0f;  // -log(2^-33) = 22.87

  // Below u = 1/2 the inner logarithm is taken of u, above of 1 - u, each exact before it is rounded:
  // both tails keep full float32 precision.
  static KG_INLINE float from_word(uint32_t word) {
    const bool small = (int)word >= 0;
    const uint32_t near = small ? word : ~word;
    const float x = __builtin_fmaf((float)(int)(near >> 16), 65536.0f, (float)(int)(near & 0xffffu) + 0.5f) * 0x1p-32f;
    const uint32_t shifted = bits_of(x) - 0x3f3504f3u;
    const float m = float_of((shifted & 0x7fffffu) + 0x3f3504f3u);
    const float exponent = small ? 0.0f : (float)((int)shifted >> 23);
    const float s = (small ? x : 1.0f - m) / (small ? 2.0f - x : 1.0f + m);
    const float z = s * s;
    const float atanh = __builtin_fmaf(s * z, poly::horner(poly::ATANH, z), s);
    return -log(__builtin_fmaf(-exponent, 0x1.62e43p-1f, 2.0f * atanh));
  }

 private:
  static KG_INLINE uint32_t rotate(uint32_t x, int by) { return x << by | x >> (32 - by); }
  static KG_INLINE uint32_t mix(uint32_t h, uint32_t block) {
    h ^= rotate(block * 0xcc9e2d51u, 15) * 0x1b873593u;
    return rotate(h, 13) * 5u + 0xe6546b64u;
  }

  uint32_t state_;
};

struct Best {
  float value = -__builtin_inff();
  int id = INT_MAX;

  // The larger value wins, among equals the lower id. A NaN wins over all else: nobody may overlook it.
  KG_INLINE void take(float v, int i) {
    if (v > value || (v == value && i < id) || v != v) value = v, id = i;
  }
};

constexpr int NO_CHOICE = -2;  // instead of an id, for a row that holds a NaN

// Sampling fields of the request rows.
struct Sampling {
  const float* temperature;
  const float* top_p;
  const int32_t* top_k;
  const int32_t* seed;  // [rows, 2], low and high word
  const float* min_p;
  const int32_t* rules;  // not 0: refine.h chooses

  bool greedy(int r) const { return !(temperature[r] >= 1e-30f); }  // smaller ones would overflow
  template <int VOCAB>
  bool cuts(int r) const { return (top_k[r] > 0 && top_k[r] < VOCAB) || top_p[r] < 1.0f || min_p[r] > 0.0f; }
  Noise noise(int r, int position) const {
    return {(uint32_t)seed[2 * r], (uint32_t)seed[2 * r + 1], (uint32_t)position};
  }
};

namespace sample_detail {

constexpr int PIECE = 2048;  // logits of one unit of the first phase

// Whether all lanes are numbers, none of them above `best`.
KG_INLINE bool settled(float best, F16 x) {
  return (bits(less(splat(best), x)) | (bits(equal(x, x)) ^ ((1u << LANES) - 1u))) == 0;
}

KG_INLINE Best argmax(const float* logits, int begin, int end) {
  Best best;
  int i = begin;
  for (; i + LANES <= end; i += LANES) {
    if (settled(best.value, load(logits + i))) continue;
    for (int j = i; j < i + LANES; ++j) best.take(logits[j], j);
  }
  for (; i < end; ++i) best.take(logits[i], i);
  return best;
}

// argmax of logit / temperature + noise. Where even the largest noise could not win, none is computed.
template <class Noise>
KG_INLINE Best argmax_noisy(const float* logits, int begin, int end, float temperature, const Noise& noise) {
  Best best;
  int i = begin;
  for (; i + LANES <= end; i += LANES) {
    const F16 scaled = load(logits + i) / splat(temperature);
    if (settled(best.value - Noise::LARGEST, scaled)) continue;
    alignas(64) float value[LANES];
    store(value, scaled);
    for (int j = 0; j < LANES; ++j) value[j] += noise.of((uint32_t)(i + j));
    for (int j = 0; j < LANES; ++j) best.take(value[j], i + j);
  }
  for (; i < end; ++i) best.take(logits[i] / temperature + noise.of((uint32_t)i), i);
  return best;
}

// Where the tokens of a row, sorted by logit downwards and id upwards, are cut: the last one kept.
struct Cut {
  uint32_t key;
  int id;
  bool keeps(uint32_t k, int i) const { return k > key || (k == key && i <= id); }
};

// One row of scaled logits under min-p, top-k and top-p. A draw looks at those within REACH of the largest:
// the others have no mass (below 2^-40 of the largest) and no noise lifts them to the top.
template <int VOCAB>
class Truncated {
 public:
  Truncated(const float* logits, float temperature, float largest)
      : logits_(logits), temperature_(temperature), top_(largest / temperature) {}

  // Where the row is cut. `reach` below the largest logit nothing is looked at.
  Cut cut(int top_k, float top_p, float min_p, float reach) const {
    const float least = top_ + (min_p > 0.0f ? log(min_p > 1e-30f ? min_p : 1e-30f) : -__builtin_inff());
    const float floor = top_ - reach > -__FLT_MAX__ ? top_ - reach : -__FLT_MAX__;
    Cut cut{key(least > floor ? least : floor), INT_MAX};
    if (top_k > 0) {
      cut = find<false>(cut, [=](uint64_t all) { return all < (uint64_t)top_k ? all : (uint64_t)top_k; });
    }
    if (top_p < 1.0f) {
      cut = find<true>(cut, [=](uint64_t all) {
        const double goal = (double)top_p * (double)all;
        return goal < 1.0 ? (uint64_t)1 : goal < (double)all ? (uint64_t)__builtin_ceil(goal) : all;
      });
    }
    return cut;
  }

  template <class Noise>
  int draw(int top_k, float top_p, float min_p, const Noise& noise) const {
    const Cut last = cut(top_k, top_p, min_p, REACH);
    Best best;
    each<false>(last.key, key(top_), [&](int id, float s, uint32_t k, uint64_t) {
      if (!last.keeps(k, id)) return;
      if (best.id == INT_MAX || s + Noise::LARGEST > best.value) best.take(s + noise.of((uint32_t)id), id);
    });
    return best.id;
  }

  // visit(id) of every token that is kept, ids ascending.
  template <class Visit>
  void kept(int top_k, float top_p, float min_p, const Visit& visit) const {
    const Cut last = cut(top_k, top_p, min_p, __builtin_inff());
    each<false>(last.key, key(top_), [&](int id, float, uint32_t k, uint64_t) {
      if (last.keeps(k, id)) visit(id);
    });
  }

 private:
  static constexpr float REACH = 28.0f;
  static constexpr int BITS = 11;  // of a key that one pass over the row settles

  // Orders like the float does; zero has one key.
  static KG_INLINE uint32_t key(float s) {
    const uint32_t u = bits_of(s + 0.0f);
    return u ^ ((uint32_t)((int)u >> 31) | 0x80000000u);
  }

  // visit(id, scaled logit, key, mass) of every token with low <= key <= high, ids ascending. The mass
  // is the softmax weight relative to the largest logit, in units of 2^-40.
  template <bool MASS, class Visit>
  KG_INLINE void each(uint32_t low, uint32_t high, const Visit& visit) const {
    for (int i = 0; i < VOCAB; i += LANES) {
      constexpr int tail = VOCAB % LANES;
      const int count = tail != 0 && i + LANES > VOCAB ? tail : LANES;
      float s[LANES], mass[LANES];
      uint32_t keys[LANES], hit = 0;
      for (int j = 0; j < LANES; ++j) s[j] = j < count ? logits_[i + j] / temperature_ : -__builtin_inff();
      for (int j = 0; j < LANES; ++j) keys[j] = key(s[j]);
      for (int j = 0; j < LANES; ++j) hit |= (uint32_t)(keys[j] - low <= high - low);
      if (hit == 0) continue;
      if (MASS) {
        for (int j = 0; j < LANES; ++j) mass[j] = exp(s[j] - top_) * 0x1p40f;
      }
      for (int j = 0; j < count; ++j) {
        if (keys[j] - low <= high - low) visit(i + j, s[j], keys[j], MASS ? (uint64_t)mass[j] : 1);
      }
    }
  }

  // The shortest prefix of what `limit` keeps whose count (or MASS) reaches goal(count or mass of all).
  template <bool MASS, class Goal>
  Cut find(Cut limit, const Goal& goal) const {
    uint32_t low = limit.key, high = key(top_);
    uint64_t need = 0;
    for (bool first = true;; first = false) {
      const int width = 32 - __builtin_clz((high - low) | 1u);
      const int shift = width > BITS ? width - BITS : 0;
      uint64_t bins[1 << BITS] = {};
      each<MASS>(low, high, [&](int id, float, uint32_t k, uint64_t weight) {
        if (limit.keeps(k, id)) bins[(high - k) >> shift] += weight;
      });
      if (first) {
        uint64_t all = 0;
        for (const uint64_t bin : bins) all += bin;
        need = goal(all);
      }
      uint32_t bin = 0;
      while (need > bins[bin]) need -= bins[bin++];
      high -= bin << shift;
      if (shift == 0) break;
      const uint32_t end = high - ((1u << shift) - 1u);
      if (end > low) low = end;
    }
    // What is left shares one logit: the lowest ids come first.
    int last = INT_MAX;
    each<MASS>(high, high, [&](int id, float, uint32_t, uint64_t weight) {
      if (need == 0) return;
      need -= weight < need ? weight : need;
      last = id;
    });
    return {high, last};
  }

  const float* logits_;
  float temperature_, top_;
};

}  // namespace sample_detail

template <int VOCAB>
constexpr size_t sample_scratch(int logit_rows) {
  return (size_t)logit_rows * ((VOCAB + sample_detail::PIECE - 1) / sample_detail::PIECE) * sizeof(Best);
}

// Kernel: chooses an id for every logit row that asks for one.
//   logits        [logit_rows, VOCAB]
//   logit_token   token row that each logit row belongs to
//   logit_row     request row that takes the id, or -1
//   sampled       [logit_rows]: the id, -1 where none was asked, NO_CHOICE where a logit is NaN
//   last_sampled  [slots]: the id of each request's slot; 0 instead of NO_CHOICE
//   scratch       sample_scratch<VOCAB>(logit_rows) bytes
template <int VOCAB>
void sample(const Worker& me, const Batch& batch, int logit_rows, const float* logits, const int32_t* logit_token,
            const int32_t* logit_row, const Sampling& how, int32_t* sampled, int32_t* last_sampled, void* scratch) {
  using namespace sample_detail;
  constexpr int chunks = (VOCAB + PIECE - 1) / PIECE;
  Best* const part = static_cast<Best*>(scratch);
  const auto asked = [&](int i) { return logit_row[i] >= 0 && !batch.padding(logit_row[i]) && !how.rules[logit_row[i]]; };
  const auto noise = [&](int i) {
    const int r = logit_row[i];
    return how.noise(r, batch.first_position(r) + logit_token[i] - batch.query_start[r] + 1);
  };

  // Every (row, piece of the vocabulary): the best candidate, or the plain maximum where a cut follows.
  const Range mine = me.share(logit_rows * chunks);
  for (int u = mine.begin; u < mine.end; ++u) {
    const int i = u / chunks, r = logit_row[i], begin = u % chunks * PIECE;
    const int end = VOCAB - begin < PIECE ? VOCAB : begin + PIECE;
    if (!asked(i)) continue;
    const float* const row = logits + (size_t)i * VOCAB;
    part[u] = how.greedy(r) || how.cuts<VOCAB>(r) ? argmax(row, begin, end)
                                                  : argmax_noisy(row, begin, end, how.temperature[r], noise(i));
  }
  me.sync();

  // Every row.
  const Range rows = me.share(logit_rows);
  for (int i = rows.begin; i < rows.end; ++i) {
    sampled[i] = -1;
    if (!asked(i)) continue;
    const int r = logit_row[i];
    Best best;
    for (int c = 0; c < chunks; ++c) best.take(part[i * chunks + c].value, part[i * chunks + c].id);
    if (best.value != best.value) {
      best.id = NO_CHOICE;
    } else if (best.value - best.value != 0.0f) {
      best.id = best.id == INT_MAX ? 0 : best.id;  // no finite maximum: nothing to draw from
    } else if (!how.greedy(r) && how.cuts<VOCAB>(r)) {
      const Truncated<VOCAB> row(logits + (size_t)i * VOCAB, how.temperature[r], best.value);
      best.id = row.draw(how.top_k[r], how.top_p[r], how.min_p[r], noise(i));
    }
    sampled[i] = best.id;
    last_sampled[batch.slot[r]] = best.id < 0 ? 0 : best.id;
  }
}

}  // namespace kg
