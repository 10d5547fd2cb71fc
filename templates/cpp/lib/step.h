// What kernels know of a step: token rows, request rows, and where tokens lie in the paged cache.
//
// Filled once a step by program.h from the int32 `args` tensor; docs/abi.md names every field.
#pragma once
#include <cstddef>
#include <cstdint>

#include "cache.h"
#include "latent.h"
#include "sample.h"
#include "scan.h"

namespace kg {

// One place where a layer keeps something: whose block table, and the byte in each page; of a state
// only the byte counts.
struct LayerCache {
  int group;
  size_t offset;
};

struct Step {
  int tokens, requests, logit_rows;
  Batch batch;                  // which token rows belong to which request

  const int32_t* token_ids;     // [tokens] with the last sampled ids filled in
  const int32_t* positions;     // [tokens]
  const int32_t* rows;          // [tokens] request row, -1 for padding
  const int32_t* row_slot;      // [requests] -1 for padding
  const int32_t* query_start;   // [requests + 1]
  const int32_t* seq_len;       // [requests] tokens of the request once this step is done
  const int32_t* logit_tokens;  // [logit_rows]
  const int32_t* logit_rows_of; // [logit_rows] request row that takes the id, -1: logits only

  Sampling sampling;            // per request row
  const int32_t* logprobs;      // [logit_rows] likeliest tokens wanted beside the chosen one, -1: nothing, -2: the slot's
  const int32_t* logprob_token; // [logit_rows] token whose log-probability is wanted, -1: the chosen one
  const int32_t* mask;          // [logit_rows] whether the kept ids are wanted

  uint8_t* cache;
  size_t page_bytes;
  int max_pages;                    // entries of a row's block table
  const int32_t* const* block_table;  // [groups] -> [requests, max_pages]

  StatePages states;                // of the requests, where layers carry any

  int32_t* last_sampled;        // [slots]

  // The pages of one layer.
  template <class T, int KV_HEADS, int D>
  Cache<T, KV_HEADS, D> layer(const LayerCache& place) const {
    return {cache + place.offset, page_bytes, 0, block_table[place.group], max_pages};
  }

  // The same of a layer that keeps one row a token.
  template <class T, int WIDTH>
  LatentCache<T, WIDTH> latents(const LayerCache& place) const {
    return {cache + place.offset, page_bytes, block_table[place.group], max_pages};
  }
};

}  // namespace kg
