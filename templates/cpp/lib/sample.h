// The choice of a token for each logit row (docs/abi.md, "Sampling").
#pragma once
#include "numeric.h"
#include "step.h"
#include "team.h"

namespace kg {

// MurmurHash3-x86-32, hash seed 0, of the 16 bytes (int64 seed, int32 position, uint32 token).
KG_INLINE uint32_t noise_word(int64_t seed, int32_t position, uint32_t token) {
  const uint32_t words[4] = {(uint32_t)seed, (uint32_t)((uint64_t)seed >> 32), (uint32_t)position, token};
  uint32_t h = 0;
  for (uint32_t k : words) {
    k *= 0xcc9e2d51u;
    k = k << 15 | k >> 17;
    h ^= k * 0x1b873593u;
    h = h << 13 | h >> 19;
    h = h * 5 + 0xe6546b64u;
  }
  h ^= 16;
  h ^= h >> 16;
  h *= 0x85ebca6bu;
  h ^= h >> 13;
  h *= 0xc2b2ae35u;
  return h ^ h >> 16;
}

// Greedy only, for now in one pass a row.
template <int VOCABULARY>
void sample(const Worker& me, const Step& step, const float* logits, void*, int32_t* sampled) {
  const Range mine = me.share(step.logit_rows);
  for (int b = mine.begin; b < mine.end; ++b) {
    const int row = step.logit_rows_of[b];
    if (row < 0) { sampled[b] = -1; continue; }
    const float* const x = logits + (size_t)b * VOCABULARY;
    int best = 0;
    for (int i = 1; i < VOCABULARY; ++i) if (x[i] > x[best]) best = i;
    sampled[b] = best;
    step.last_sampled[step.row_slot[row]] = best;
  }
}

}  // namespace kg
