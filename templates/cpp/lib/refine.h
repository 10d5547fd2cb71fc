// What follows a step for the rows that ask more than a choice: edited logits or a marked choice, the
// set that top-k and top-p keep, log-probabilities. docs/abi.md says what each word of `rules` means.
#pragma once
#include "step.h"
#include "team.h"
#include "watermark.h"

namespace kg {

constexpr int TOLD = -2;  // instead of a number of likeliest tokens: those that the slot names

// Where the fields of a slot start, in words.
struct RuleFields {
  size_t words;
  size_t repetition, frequency, presence, free_position, biases, bad_words, ends, dense, told;
  size_t seen, remembered, first_generated, width, deduplicate, key_low, key_high;
  size_t marked, state0, state1, state2, state3, guided;
  size_t bias_ids, bias_values, end_ids, told_ids, bad_word_ids, history, bins, edited, allowed;
  int history_size, bad_word_size, logprob_words, most_logprobs, mask_words, mask_ids;
};

// The rules of one slot.
class SlotRules {
 public:
  SlotRules(const RuleFields& at, int32_t* rules, int slot) : at_(at), words_(rules + (size_t)slot * at.words) {}

  int32_t& word(size_t field) const { return words_[field]; }
  int32_t* list(size_t field) const { return words_ + field; }
  float number(size_t field) const { return float_of((uint32_t)words_[field]); }
  float* edited() const { return reinterpret_cast<float*>(words_ + at_.edited); }

  // Takes the newest token of a sequence of `tokens`, unless it is in already.
  void remember(int tokens, int newest) const {
    if (word(at_.seen) >= tokens) return;
    word(at_.seen) = tokens;
    history(word(at_.remembered)++) = newest;
    ++list(at_.bins)[newest];
  }

  // The i-th newest generated token, from 0; -1 where there were fewer.
  int back(int i) const {
    const int entry = word(at_.remembered) - 1 - i;
    return i < at_.history_size && entry >= word(at_.first_generated) ? history(entry) : -1;
  }

  // Whether the newest `width` generated tokens stand together anywhere before.
  bool repeats(int width) const {
    const int end = word(at_.remembered);
    if (end - word(at_.first_generated) < width) return false;
    const int first = end > at_.history_size ? end - at_.history_size : 0;
    for (int e = first + width - 1; e < end - 1; ++e) {
      int same = 0;
      while (same < width && history(e - same) == history(end - 1 - same)) ++same;
      if (same == width) return true;
    }
    return false;
  }

  // Fills `edited` from logits in the order of abi.md; `position` is that of the token to be chosen.
  void edit(const float* logits, int vocabulary, int position) const {
    float* const x = edited();
    std::memcpy(x, logits, (size_t)vocabulary * sizeof(float));
    for (int i = 0; i < word(at_.biases); ++i) x[list(at_.bias_ids)[i]] += float_of((uint32_t)list(at_.bias_values)[i]);
    if (position < word(at_.free_position))
      for (int i = 0; i < word(at_.ends); ++i) x[list(at_.end_ids)[i]] = -__builtin_inff();
    if (word(at_.dense)) penalise(x, vocabulary);
    for (int i = 0; i < word(at_.bad_words); ++i) {
      const int32_t* const ids = list(at_.bad_word_ids) + (size_t)i * at_.bad_word_size;
      int j = 1;
      while (j < at_.bad_word_size && ids[j] >= 0 && ids[j] == back(j - 1)) ++j;
      if (j == at_.bad_word_size || ids[j] < 0) x[ids[0]] = -__builtin_inff();
    }
    if (word(at_.guided)) guide(x, vocabulary);
  }

  // Settles whether the next choice is marked, and with which words.
  void mark(bool greedy) const {
    const int width = word(at_.width);
    word(at_.marked) = width > 0 && !greedy && !(word(at_.deduplicate) && repeats(width));
    if (!word(at_.marked)) return;
    const Four state = context_state((uint32_t)word(at_.key_low), (uint32_t)word(at_.key_high), width,
                                     [&](int i) { return back(width - 1 - i); });
    for (int i = 0; i < 4; ++i) list(at_.state0)[i] = (int32_t)state.word[i];
  }

  Mark noise() const {
    const uint32_t* const state = reinterpret_cast<const uint32_t*>(list(at_.state0));
    return {(uint32_t)word(at_.key_low), (uint32_t)word(at_.key_high), {{state[0], state[1], state[2], state[3]}}};
  }

 private:
  // allowed: a bit for each token, the lowest first; a grammar lets through what has one.
  void guide(float* x, int vocabulary) const {
    const int32_t* const allowed = list(at_.allowed);
    for (int first = 0; first < vocabulary; first += 32) {
      const uint32_t bits = (uint32_t)allowed[first / 32];
      if (bits == 0xffffffffu) continue;
      const int count = vocabulary - first < 32 ? vocabulary - first : 32;
      for (int i = 0; i < count; ++i) x[first + i] = bits >> i & 1u ? x[first + i] : -__builtin_inff();
    }
  }

  // bins: how often a token was generated; bit 31 says that the prompt has it, bit 30 that it is forbidden.
  void penalise(float* x, int vocabulary) const {
    const int32_t* const bins = list(at_.bins);
    const float repetition = number(at_.repetition), frequency = number(at_.frequency), presence = number(at_.presence);
    for (int i = 0; i < vocabulary; ++i) {
      const uint32_t bin = (uint32_t)bins[i];
      if (bin == 0) continue;
      const int count = (int)(bin & 0x3fffffffu);
      if (bin & 0x40000000u) x[i] = -__builtin_inff();
      if (bin & 0xbfffffffu) x[i] = x[i] > 0.0f ? x[i] / repetition : x[i] * repetition;
      x[i] -= frequency * (float)count;
      x[i] -= count > 0 ? presence : 0.0f;
    }
  }

  int32_t& history(int entry) const { return list(at_.history)[entry % at_.history_size]; }

  const RuleFields& at_;
  int32_t* const words_;
};

namespace refine_detail {

inline bool broken(const float* logits, int count) {
  bool found = false;
  for (int i = 0; i < count; ++i) found |= logits[i] != logits[i];
  return found;
}

template <int VOCAB, class Noise>
int choose(const float* x, const Sampling& how, int r, const Noise& noise) {
  const Best best = sample_detail::argmax(x, 0, VOCAB);
  if (best.value - best.value != 0.0f) return best.id == INT_MAX ? 0 : best.id;
  if (how.greedy(r)) return best.id;
  const float temperature = how.temperature[r];
  if (!how.cuts<VOCAB>(r)) return sample_detail::argmax_noisy(x, 0, VOCAB, temperature, noise).id;
  return sample_detail::Truncated<VOCAB>(x, temperature, best.value).draw(how.top_k[r], how.top_p[r], how.min_p[r], noise);
}

}  // namespace refine_detail

// Chooses for every logit row whose request has rules; `step` has left `logits` and chosen nothing there.
template <int VOCAB>
void refine(const Worker& me, const Step& step, const RuleFields& at, int32_t* rules, const float* logits, int32_t* sampled) {
  using namespace refine_detail;
  const Range rows = me.share(step.logit_rows);
  for (int b = rows.begin; b < rows.end; ++b) {
    const int r = step.logit_rows_of[b];
    if (r < 0 || step.batch.padding(r) || !step.sampling.rules[r]) continue;
    const float* const row = logits + (size_t)b * VOCAB;
    const SlotRules slot(at, rules, step.row_slot[r]);
    const int t = step.logit_tokens[b], position = step.positions[t] + 1;
    slot.remember(position, step.token_ids[t]);
    int id = NO_CHOICE;
    if (!broken(row, VOCAB)) {
      slot.edit(row, VOCAB, position);
      slot.mark(step.sampling.greedy(r));
      id = slot.word(at.marked) ? choose<VOCAB>(slot.edited(), step.sampling, r, slot.noise())
                                : choose<VOCAB>(slot.edited(), step.sampling, r, step.sampling.noise(r, position));
    }
    sampled[b] = id;
    step.last_sampled[step.row_slot[r]] = id < 0 ? 0 : id;
  }
}

// Lists, for every logit row that asks, which tokens its choice was among: a count, then as many ids, or, where there
// are more than fit, a bit for each token.
template <int VOCAB>
void keep_masks(const Worker& me, const Step& step, const RuleFields& at, int32_t* rules, const float* logits, int32_t* masks) {
  const Range rows = me.share(step.logit_rows);
  for (int b = rows.begin; b < rows.end; ++b) {
    const int r = step.logit_rows_of[b];
    if (r < 0 || step.batch.padding(r) || !step.mask[b]) continue;
    const float* const row = step.sampling.rules[r] ? SlotRules(at, rules, step.row_slot[r]).edited() : logits + (size_t)b * VOCAB;
    int32_t* const out = masks + (size_t)b * at.mask_words;
    out[0] = 0;
    const Best best = sample_detail::argmax(row, 0, VOCAB);
    if (step.sampling.greedy(r) || best.value - best.value != 0.0f) continue;
    const sample_detail::Truncated<VOCAB> cut(row, step.sampling.temperature[r], best.value);
    const auto each = [&](const auto& visit) {
      cut.kept(step.sampling.top_k[r], step.sampling.top_p[r], step.sampling.min_p[r], visit);
    };
    each([&](int id) {
      if (out[0] < at.mask_ids) out[1 + out[0]] = id;
      ++out[0];
    });
    if (out[0] <= at.mask_ids) continue;
    std::memset(out + 1, 0, (size_t)((VOCAB + 31) / 32) * sizeof(int32_t));
    each([&](int id) { out[1 + id / 32] = (int32_t)((uint32_t)out[1 + id / 32] | 1u << id % 32); });
  }
}

// Log-probabilities of the model's own logits for every logit row that asks: rank and log-probability of the given
// token (or of the chosen one), its id, then the likeliest ids, or those that its slot names, and theirs.
template <int VOCAB>
void log_likelihoods(const Worker& me, const Step& step, const RuleFields& at, int32_t* rules, const float* logits,
                     const int32_t* sampled, int32_t* out) {
  const Range rows = me.share(step.logit_rows);
  for (int b = rows.begin; b < rows.end; ++b) {
    const bool is_told = step.logprobs[b] == TOLD;
    const int count = is_told ? 0 : step.logprobs[b] < at.most_logprobs ? step.logprobs[b] : at.most_logprobs;
    if (count < 0) continue;
    const float* const x = logits + (size_t)b * VOCAB;
    int32_t* const to = out + (size_t)b * at.logprob_words;
    const int given = step.logprob_token[b], token = given >= 0 ? given : sampled[b];
    Best best[64];
    int held = 0;
    float top = -__builtin_inff();
    for (int i = 0; i < VOCAB; ++i) top = x[i] > top ? x[i] : top;
    const float own = token >= 0 && token < VOCAB ? x[token] : __builtin_inff();
    double sums[LANES] = {};
    int above[LANES] = {};
    for (int i = 0; i < VOCAB; i += LANES)
      for (int j = 0; j < LANES; ++j) {
        const bool there = VOCAB % LANES == 0 || i + j < VOCAB;
        const float y = there ? x[i + j] : -__builtin_inff();
        sums[j] += exp(y - top);
        above[j] += y > own;
      }
    double sum = 0.0;
    int rank = 1;
    for (int j = 0; j < LANES; ++j) sum += sums[j], rank += above[j];
    for (int i = 0; i < VOCAB && count > 0; ++i) {
      if (held == count && !(x[i] > best[held - 1].value)) continue;
      int place = held < count ? held++ : held - 1;
      for (; place > 0 && x[i] > best[place - 1].value; --place) best[place] = best[place - 1];
      best[place].value = x[i], best[place].id = i;
    }
    const float log_sum = top + log((float)sum);
    to[0] = rank;
    to[1] = (int32_t)bits_of(own - log_sum);
    to[2] = token;
    for (int i = 0; i < count; ++i) {
      to[3 + i] = i < held ? best[i].id : -1;
      to[3 + at.most_logprobs + i] = (int32_t)bits_of(best[i].value - log_sum);
    }
    const int r = step.logit_rows_of[b];
    if (!is_told || r < 0) continue;
    const SlotRules slot(at, rules, step.row_slot[r]);
    for (int i = 0; i < slot.word(at.told); ++i) {
      to[3 + i] = slot.list(at.told_ids)[i];
      to[3 + at.most_logprobs + i] = (int32_t)bits_of(x[to[3 + i]] - log_sum);
    }
  }
}

}  // namespace kg
