// The watermark: words that follow from a key and the tokens before, as Philox4x32-10 gives them.
#pragma once
#include "numeric.h"

namespace kg {

struct Four {
  uint32_t word[4];
};

inline Four philox(Four counter, uint32_t low, uint32_t high) {
  uint32_t(&c)[4] = counter.word;
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = (uint64_t)c[0] * 0xd2511f53u, second = (uint64_t)c[2] * 0xcd9e8d57u;
    counter = {{(uint32_t)(second >> 32) ^ c[1] ^ low, (uint32_t)second, (uint32_t)(first >> 32) ^ c[3] ^ high, (uint32_t)first}};
    low += 0x9e3779b9u, high += 0xbb67ae85u;
  }
  return counter;
}

// The four words that a context leaves; context(i) is its token i, -1 where there was none.
template <class Context>
Four context_state(uint32_t low, uint32_t high, int width, const Context& context) {
  Four state{{0x574d4358u, (uint32_t)width, 0, 0}};
  for (int offset = 0; offset < width; offset += 4) {
    for (int i = 0; i < 4; ++i) state.word[i] ^= offset + i < width ? (uint32_t)context(offset + i) : 0xffffffffu - (uint32_t)i;
    state = philox(state, low ^ (uint32_t)offset, high);
  }
  return state;
}

// What a marked choice adds to the logits: -log(-log u) of each token.
class Mark {
 public:
  Mark(uint32_t low, uint32_t high, const Four& state)
      : state_(state), low_(low ^ state.word[3]), high_(high ^ 0x574d544bu) {}

  static constexpr float LARGEST = 17.0f;  // u is at most 1 - 2^-24

  uint32_t word(uint32_t token) const {
    return philox({{token >> 2, state_.word[0], state_.word[1], state_.word[2]}}, low_, high_).word[token & 3];
  }
  float of(uint32_t token) const { return -log(-log(uniform(word(token)))); }

  // n / (2^24 + 1), n = (word >> 8) + 1, rounded once: n (2^-24 - 2^-48) rounds the same for every n.
  static float uniform(uint32_t word) {
    const float n = (float)((word >> 8) + 1);
    return __builtin_fmaf(n, -0x1p-48f, n * 0x1p-24f);
  }

 private:
  Four state_;
  uint32_t low_, high_;
};

}  // namespace kg
