// The step program: walks the tables that the generator printed. Exports bind, step and kernel.
//
// A step checks every count and index before the first write, prepares positions and ids, and then runs
// all launches inside one parallel region with a barrier between them. It never allocates.
#pragma once
#include <cstring>

#include "bandwidth.h"
#include "buffer.h"
#include "isa.h"
#include "refine.h"
#include "step.h"
#include "team.h"

namespace kg {
namespace program {

constexpr int MAX_OPERANDS = 20;
constexpr unsigned ALIGNMENT = 64;  // of weights, cache and workspace
constexpr int64_t STEP_VALUES = 5, FIRST_LAYER = 1000;  // what numbers mean among the operands of a kernel

using kg::Element;  // the generated tables name both
using kg::Weight;

enum class Kind : uint8_t { none, slot, weight, bound, layer, step };
enum class Phase : uint8_t { decode, mixed };
enum Bound : uint32_t { LOGITS, SAMPLED, CACHE, WORKSPACE, LAST_SAMPLED, STEP_BOUND, RULES = STEP_BOUND, LOGPROBS, MASKS, STATES, BOUND_COUNT };
enum StepValue : uint32_t { TOKEN_IDS, POSITIONS, ROWS, LOGIT_TOKENS, SAMPLING };

struct Ref {
  Kind kind = Kind::none;
  uint32_t number = 0;
};
constexpr Ref slot(uint32_t n) { return {Kind::slot, n}; }
constexpr Ref weight(uint32_t n) { return {Kind::weight, n}; }
constexpr Ref bound(Bound n) { return {Kind::bound, n}; }
constexpr Ref layer(uint32_t n) { return {Kind::layer, n}; }
constexpr Ref value(StepValue n) { return {Kind::step, n}; }

using KernelFunction = void (*)(const Step&, void* const*, const Worker&);

struct KernelEntry {
  const char* name;
  KernelFunction function;
  int operands;
};
struct Launch {
  int kernel;
  Ref refs[MAX_OPERANDS];
};
struct Plan {
  Phase phase;
  int size;
  const Launch* launches;
  int launch_count;
  const uint64_t* slots;
  uint64_t workspace_bytes;
};
struct Fields {  // offsets into args, in words
  size_t counts, token_ids, row_slot, row_query_start, row_seq_len, logit_token, logit_row;
  size_t temperature, top_p, top_k, seed, min_p, rules, logprobs, logprob_token, mask;
  size_t state_from, state_to, state_mark, state_mark_at;  // where the model has states
  const size_t* block_table;
};
// What may follow a step: choices by the rules of slots, kept sets, log-probabilities.
struct After {
  void (*refine)(const Worker&, const Step&, const RuleFields&, int32_t*, const float*, int32_t*);
  void (*keep_masks)(const Worker&, const Step&, const RuleFields&, int32_t*, const float*, int32_t*);
  void (*log_likelihoods)(const Worker&, const Step&, const RuleFields&, int32_t*, const float*, const int32_t*, int32_t*);
};
struct Model {
  int vocabulary;
  size_t page_bytes, state_bytes;  // of a page of tokens, of a page of states (0: there are none)
  int groups, max_tokens, max_rows, max_pages;
  int64_t args_words;
  Fields fields;
  RuleFields rules;
  After after;
  const Weight* weights;
  int weight_count;
  const LayerCache* layers;
  int layer_count;
  const KernelEntry* kernels;
  int kernel_count;
  const Plan* plans;
  int plan_count;
};

constexpr int MAX_TOKENS = 1 << 14, MAX_ROWS = 1 << 10, MAX_GROUPS = 64, MAX_WEIGHTS = 1 << 14;

// Everything that lives as long as the library.
struct State {
  Team team;
  void* weights[MAX_WEIGHTS];
  void* buffers[BOUND_COUNT];
  int64_t sizes[BOUND_COUNT];  // rows of logits, slots, pages, bytes of the workspace
  int32_t token_ids[MAX_TOKENS], positions[MAX_TOKENS], rows[MAX_TOKENS];
  const int32_t* block_table[MAX_GROUPS];
};

inline State& state() {
  static State s{};
  return s;
}

// Reads a tensor argument: on the CPU, dense, of the element type. Null with the error raised.
inline const DLTensor* dense(const TVMFFIAny& arg, const char* name, Element element, unsigned alignment = 1) {
  const DLTensor* t = dense_tensor(arg, name, kDLCPU, alignment);
  return t && check_element(t, name, element) ? t : nullptr;
}

inline int bind_buffer(Bound which, const char* name, Element element, int64_t unit, const TVMFFIAny& arg) {
  const DLTensor* t = dense(arg, name, element, which == CACHE || which == WORKSPACE || which == STATES ? ALIGNMENT : 1);
  if (!t) return -1;
  const int64_t units = whole_units(t, name, unit);
  if (units < 0) return -1;
  state().buffers[which] = ffi::data(t);
  state().sizes[which] = units;
  return 0;
}

inline int bind(const Model& model, const char* name, size_t length, const TVMFFIAny& arg) {
  const auto is = [&](const char* other) { return std::strlen(other) == length && std::memcmp(name, other, length) == 0; };
  if (is("cache")) return bind_buffer(CACHE, "cache", Element::u8, (int64_t)model.page_bytes, arg);
  if (is("states") && model.state_bytes) return bind_buffer(STATES, "states", Element::u8, (int64_t)model.state_bytes, arg);
  if (is("workspace")) return bind_buffer(WORKSPACE, "workspace", Element::u8, 1, arg);
  if (is("logits")) return bind_buffer(LOGITS, "logits", Element::f32, model.vocabulary, arg);
  if (is("last_sampled")) return bind_buffer(LAST_SAMPLED, "last_sampled", Element::i32, 1, arg);
  if (is("sampled")) return bind_buffer(SAMPLED, "sampled", Element::i32, 1, arg);
  if (is("rules")) return bind_buffer(RULES, "rules", Element::i32, (int64_t)model.rules.words, arg);
  if (is("logprobs")) return bind_buffer(LOGPROBS, "logprobs", Element::i32, model.rules.logprob_words, arg);
  if (is("masks")) return bind_buffer(MASKS, "masks", Element::i32, model.rules.mask_words, arg);
  for (int i = 0; i < model.weight_count; ++i) {
    const Weight& w = model.weights[i];
    if (!is(w.name)) continue;
    const DLTensor* t = dense(arg, w.name, w.element, ALIGNMENT);
    if (!t || check_elements(t, w.name, w.elements)) return -1;
    state().weights[i] = ffi::data(t);
    return 0;
  }
  return ffi::raise("ValueError", "%.*s: no buffer of this name", (int)(length < 200 ? length : 200), name);
}

// Checks the pages of states and fills in where they are.
inline int prepare_states(const Model& model, const int32_t* args, Step& step) {
  State& s = state();
  const Fields& f = model.fields;
  const int64_t pages = s.sizes[STATES];
  if (!s.buffers[STATES]) return ffi::raise("RuntimeError", "states: not bound");
  const int32_t *start = args + f.row_query_start, *length = args + f.row_seq_len;
  step.states = {static_cast<uint8_t*>(s.buffers[STATES]), model.state_bytes, args + f.state_from, args + f.state_to, args + f.state_mark, args + f.state_mark_at};
  for (int r = 0; r < args[f.counts + 1]; ++r) {
    if (args[f.row_slot + r] < 0) continue;
    const int count = start[r + 1] - start[r];
    const int32_t used[] = {step.states.from[r], step.states.to[r], step.states.mark[r]};
    static const char* const names[] = {"state_from", "state_to", "state_mark"};
    for (int i = 0; i < 3; ++i)
      if (used[i] < 0 || used[i] >= pages) return ffi::raise("ValueError", "row %d: %s is page %d of %lld", r, names[i], used[i], (long long)pages);
    if (count && length[r] > count && used[0] == 0) return ffi::raise("ValueError", "row %d: %d tokens were computed, yet there is no state_from", r, length[r] - count);
  }
  return 0;
}

// Checks the arguments and fills `step`; writes nothing but the library's own arrays.
inline int prepare(const Model& model, const int32_t* args, bool decode, int max_tokens, Step& step) {
  State& s = state();
  const Fields& f = model.fields;
  const int32_t* counts = args + f.counts;
  const int tokens = counts[0], requests = counts[1], logit_rows = counts[2];
  const int64_t pages = s.sizes[CACHE], slots = s.sizes[LAST_SAMPLED];
  if (tokens < 0 || tokens > max_tokens || requests < 0 || requests > model.max_rows)
    return ffi::raise("ValueError", "%d tokens of %d requests do not fit a plan of %d tokens and %d requests", tokens, requests, max_tokens, model.max_rows);
  if (logit_rows < 0 || logit_rows > model.max_rows || logit_rows > max_tokens || logit_rows > s.sizes[LOGITS] || logit_rows > s.sizes[SAMPLED])
    return ffi::raise("ValueError", "%d logit rows do not fit: %lld rows are bound, %d tokens are planned", logit_rows, (long long)s.sizes[LOGITS], max_tokens);
  const int32_t *start = args + f.row_query_start, *length = args + f.row_seq_len, *slot_of = args + f.row_slot, *ids = args + f.token_ids;
  if (requests > 0 && start[0] != 0) return ffi::raise("ValueError", "row_query_start[0] is %d, not 0", start[0]);
  if (tokens != (requests ? start[requests] : 0)) return ffi::raise("ValueError", "%d tokens, but row_query_start ends at %d", tokens, requests ? start[requests] : 0);
  for (int g = 0; g < model.groups; ++g) s.block_table[g] = args + f.block_table[g];

  const int32_t* last = static_cast<const int32_t*>(s.buffers[LAST_SAMPLED]);
  for (int r = 0; r < requests; ++r) {
    const int count = start[r + 1] - start[r];
    const bool padding = slot_of[r] == -1;
    if (count < 0 || start[r + 1] > tokens) return ffi::raise("ValueError", "row %d: row_query_start decreases or passes %d", r, tokens);
    if (decode && count > 1) return ffi::raise("ValueError", "row %d: %d tokens in a decode plan", r, count);
    if (slot_of[r] < -1 || slot_of[r] >= slots) return ffi::raise("ValueError", "row %d: slot %d of %lld", r, slot_of[r], (long long)slots);
    if (!padding && (length[r] < count || length[r] > model.max_pages * PAGE))
      return ffi::raise("ValueError", "row %d: length %d with %d new tokens, at most %d", r, length[r], count, model.max_pages * PAGE);
    for (int t = start[r]; t < start[r + 1]; ++t) {
      const int id = ids[t] == -1 && !padding ? last[slot_of[r]] : ids[t];
      if (!padding && (id < 0 || id >= model.vocabulary)) return ffi::raise("ValueError", "token %d: id %d of %d", t, id, model.vocabulary);
      s.token_ids[t] = padding ? -1 : id;
      s.positions[t] = padding ? 0 : length[r] - count + (t - start[r]);
      s.rows[t] = padding ? -1 : r;
    }
    if (padding) continue;
    for (int g = 0; g < model.groups; ++g) {
      const int32_t* table = s.block_table[g] + (size_t)r * model.max_pages;
      const int used = (length[r] + PAGE - 1) / PAGE;
      for (int p = 0; p < used; ++p)
        if (table[p] < 0 || table[p] >= pages) return ffi::raise("ValueError", "row %d, group %d, entry %d: page %d of %lld", r, g, p, table[p], (long long)pages);
      for (int p = (length[r] - count) / PAGE; p < used; ++p)
        if (count && table[p] == 0) return ffi::raise("ValueError", "row %d, group %d, entry %d: new tokens have no page", r, g, p);
    }
  }
  if (model.state_bytes && prepare_states(model, args, step)) return -1;
  for (int b = 0; b < logit_rows; ++b) {
    const int t = args[f.logit_token + b], r = args[f.logit_row + b];
    if (t < 0 || t >= tokens) return ffi::raise("ValueError", "logit row %d: token %d of %d", b, t, tokens);
    if (r < -1 || r >= requests || (r >= 0 && slot_of[r] < 0)) return ffi::raise("ValueError", "logit row %d: request row %d", b, r);
  }

  const StatePages states = step.states;
  step = Step{};
  step.states = states;
  step.tokens = tokens, step.requests = requests, step.logit_rows = logit_rows;
  step.token_ids = s.token_ids, step.positions = s.positions, step.rows = s.rows;
  step.batch = {tokens, requests, start, length, slot_of};
  step.row_slot = slot_of, step.query_start = start, step.seq_len = length;
  step.logit_tokens = args + f.logit_token, step.logit_rows_of = args + f.logit_row;
  step.sampling = {reinterpret_cast<const float*>(args + f.temperature), reinterpret_cast<const float*>(args + f.top_p),
                   args + f.top_k, args + f.seed, reinterpret_cast<const float*>(args + f.min_p), args + f.rules};
  step.logprobs = args + f.logprobs, step.logprob_token = args + f.logprob_token, step.mask = args + f.mask;
  step.cache = static_cast<uint8_t*>(s.buffers[CACHE]), step.page_bytes = model.page_bytes;
  step.max_pages = model.max_pages, step.block_table = s.block_table;
  step.last_sampled = static_cast<int32_t*>(s.buffers[LAST_SAMPLED]);
  return 0;
}

inline void* step_value(const Step& step, uint32_t number) {
  const void* const found[] = {step.token_ids, step.positions, step.rows, step.logit_tokens, &step};
  return const_cast<void*>(found[number]);
}

inline int check_args(const Model& model, const TVMFFIAny& arg, const int32_t*& words) {
  const DLTensor* t = dense(arg, "args", Element::i32);
  if (!t || check_elements(t, "args", model.args_words, "words")) return -1;
  words = static_cast<const int32_t*>(ffi::data(t));
  return 0;
}

inline int run_step(const Model& model, int64_t plan_id, const TVMFFIAny& arg) {
  State& s = state();
  static const char* const names[STEP_BOUND] = {"logits", "sampled", "cache", "workspace", "last_sampled"};
  if (plan_id < 0 || plan_id >= model.plan_count) return ffi::raise("ValueError", "plan %lld of %d", (long long)plan_id, model.plan_count);
  const Plan& plan = model.plans[plan_id];
  for (int i = 0; i < (int)STEP_BOUND; ++i)
    if (!s.buffers[i]) return ffi::raise("RuntimeError", "%s: not bound", names[i]);
  for (int i = 0; i < model.weight_count; ++i)
    if (!s.weights[i]) return ffi::raise("RuntimeError", "%s: not bound", model.weights[i].name);
  if ((uint64_t)s.sizes[WORKSPACE] < plan.workspace_bytes)
    return ffi::raise("ValueError", "workspace: %lld bytes, plan %lld needs %llu", (long long)s.sizes[WORKSPACE], (long long)plan_id, (unsigned long long)plan.workspace_bytes);
  const int32_t* args = nullptr;
  Step step;
  if (check_args(model, arg, args) || prepare(model, args, plan.phase == Phase::decode, plan.size, step)) return -1;
  if (step.tokens == 0) return 0;

  s.team.run([&](const Worker& me) {
    for (int i = 0; i < plan.launch_count; ++i) {
      const Launch& launch = plan.launches[i];
      const KernelEntry& kernel = model.kernels[launch.kernel];
      void* operands[MAX_OPERANDS];
      for (int o = 0; o < kernel.operands; ++o) {
        const Ref ref = launch.refs[o];
        switch (ref.kind) {
          case Kind::slot: operands[o] = static_cast<char*>(s.buffers[WORKSPACE]) + plan.slots[ref.number]; break;
          case Kind::weight: operands[o] = s.weights[ref.number]; break;
          case Kind::bound: operands[o] = s.buffers[ref.number]; break;
          case Kind::layer: operands[o] = const_cast<LayerCache*>(&model.layers[ref.number]); break;
          case Kind::step: operands[o] = step_value(step, ref.number); break;
          case Kind::none: operands[o] = nullptr; break;
        }
      }
      if (i > 0) me.sync();
      kernel.function(step, operands, me);
    }
  });
  return 0;
}

// Runs what follows a step, on the same args. `bound`: the buffer that it needs, of at least `least` units.
enum class Following { refine, masks, logprobs };
inline int run_after(const Model& model, Following what, int64_t plan_id, const TVMFFIAny& arg) {
  State& s = state();
  if (plan_id < 0 || plan_id >= model.plan_count) return ffi::raise("ValueError", "plan %lld of %d", (long long)plan_id, model.plan_count);
  const Plan& plan = model.plans[plan_id];
  const int32_t* args = nullptr;
  Step step;
  if (check_args(model, arg, args) || prepare(model, args, plan.phase == Phase::decode, plan.size, step)) return -1;
  const bool is_rows = what != Following::refine;
  const Bound own = what == Following::refine ? RULES : what == Following::masks ? MASKS : LOGPROBS;
  static const char* const names[] = {"rules", "logprobs", "masks"};
  const int64_t least = is_rows ? step.logit_rows : s.sizes[LAST_SAMPLED];
  if (!s.buffers[own] || s.sizes[own] < least)
    return ffi::raise("ValueError", "%s: %lld rows are bound, %lld are needed", names[own - RULES], (long long)s.sizes[own], (long long)least);
  for (int b = 0; b < step.logit_rows; ++b) {
    const int token = step.logprob_token[b];
    if (what == Following::logprobs && (token < -1 || token >= model.vocabulary))
      return ffi::raise("ValueError", "logit row %d: logprob_token %d of %d", b, token, model.vocabulary);
    const int r = step.logit_rows_of[b];
    if (r >= 0 && (step.sampling.rules[r] || step.logprobs[b] == TOLD) && !s.buffers[RULES]) return ffi::raise("RuntimeError", "rules: not bound");
  }
  const float* const logits = static_cast<const float*>(s.buffers[LOGITS]);
  const auto words = [&](Bound which) { return static_cast<int32_t*>(s.buffers[which]); };
  s.team.run([&](const Worker& me) {
    if (what == Following::refine) model.after.refine(me, step, model.rules, words(RULES), logits, words(SAMPLED));
    if (what == Following::masks) model.after.keep_masks(me, step, model.rules, words(RULES), logits, words(MASKS));
    if (what == Following::logprobs) model.after.log_likelihoods(me, step, model.rules, words(RULES), logits, words(SAMPLED), words(LOGPROBS));
  });
  return 0;
}

// What a number among the operands of a kernel stands for: a step value, or the cache of a layer. Null: neither.
inline void* numbered(const Model& model, const Step& step, int64_t number) {
  if (number >= 0 && number < STEP_VALUES) return step_value(step, (uint32_t)number);
  const int64_t layer = number - FIRST_LAYER;
  return layer >= 0 && layer < model.layer_count ? const_cast<LayerCache*>(&model.layers[layer]) : nullptr;
}

// Runs one kernel on tensors, in operand order. A number stands for a step value or a layer of the bound cache.
inline int run_kernel(const Model& model, const char* name, size_t length, const TVMFFIAny* args, int count) {
  for (int k = 0; k < model.kernel_count; ++k) {
    const KernelEntry& kernel = model.kernels[k];
    if (std::strlen(kernel.name) != length || std::memcmp(kernel.name, name, length) != 0) continue;
    if (count != kernel.operands + 2)
      return ffi::raise("TypeError", "%s: phase, args and %d operands are expected, got %d arguments", kernel.name, kernel.operands, count);
    const int32_t* words = nullptr;
    Step step;
    if (args[0].type_index != kTVMFFIInt) return ffi::raise("TypeError", "%s: the first argument is 1 for a decode step, else 0", kernel.name);
    if (check_args(model, args[1], words) || prepare(model, words, args[0].v_int64 != 0, model.max_tokens, step)) return -1;
    void* operands[MAX_OPERANDS];
    for (int o = 0; o < kernel.operands; ++o) {
      const TVMFFIAny& arg = args[o + 2];
      if (arg.type_index == kTVMFFIInt) {
        operands[o] = numbered(model, step, arg.v_int64);
        if (!operands[o]) return ffi::raise("ValueError", "%s: operand %d: %lld is no step value and no layer", kernel.name, o, (long long)arg.v_int64);
        continue;
      }
      const DLTensor* t = ffi::tensor(arg);
      if (!t || !ffi::contiguous(t) || t->device.device_type != kDLCPU) return ffi::raise("TypeError", "%s: operand %d must be a dense tensor", kernel.name, o);
      operands[o] = ffi::data(t);
    }
    state().team.run([&](const Worker& me) { kernel.function(step, operands, me); });
    return 0;
  }
  return ffi::raise("ValueError", "%.*s: no kernel of this name", (int)(length < 200 ? length : 200), name);
}

}  // namespace program
}  // namespace kg

#define KG_EXPORT_AFTER(model, name, what)                                                       \
  KG_EXPORT(name) {                                                                              \
    KG_ARGUMENTS(2);                                                                             \
    if (args[0].type_index != kTVMFFIInt)                                                        \
      return kg::ffi::raise("TypeError", #name ": a plan number and the args tensor are expected"); \
    if (kg::program::run_after(model, kg::program::Following::what, args[0].v_int64, args[1])) return -1; \
    return kg::ffi::result(ret);                                                                 \
  }

// The library's functions; `model` is the generated table.
#define KG_EXPORT_PROGRAM(model)                                                                 \
  KG_EXPORT(kg_abi) { return kg::ffi::result(ret, (int64_t)1); }                                 \
  KG_EXPORT(kg_isa) { return kg::ffi::result(ret, kg::isa_name); }                               \
  KG_EXPORT(kg_set_threads) {                                                                    \
    KG_ARGUMENTS(1);                                                                             \
    if (args[0].type_index != kTVMFFIInt || args[0].v_int64 < 1 || args[0].v_int64 > 256)        \
      return kg::ffi::raise("ValueError", "threads: an integer from 1 to 256 is expected");      \
    kg::program::state().team.resize((int)args[0].v_int64);                                      \
    return kg::ffi::result(ret);                                                                 \
  }                                                                                              \
  KG_EXPORT(bind) {                                                                              \
    KG_ARGUMENTS(2);                                                                             \
    const kg::ffi::Text name = kg::ffi::text(args[0]);                                           \
    if (!name.data) return kg::ffi::raise("TypeError", "bind: a name and a tensor are expected"); \
    if (kg::program::bind(model, name.data, name.size, args[1])) return -1;                      \
    return kg::ffi::result(ret);                                                                 \
  }                                                                                              \
  KG_EXPORT(step) {                                                                              \
    KG_ARGUMENTS(2);                                                                             \
    if (args[0].type_index != kTVMFFIInt)                                                        \
      return kg::ffi::raise("TypeError", "step: a plan number and the args tensor are expected"); \
    if (kg::program::run_step(model, args[0].v_int64, args[1])) return -1;                       \
    return kg::ffi::result(ret);                                                                 \
  }                                                                                              \
  KG_EXPORT_AFTER(model, refine, refine)                                                         \
  KG_EXPORT_AFTER(model, keep_masks, masks)                                                      \
  KG_EXPORT_AFTER(model, logprobs, logprobs)                                                     \
  KG_EXPORT(kernel) {                                                                            \
    if (nargs < 3) return kg::ffi::raise("TypeError", "kernel: name, phase, args and operands");  \
    const kg::ffi::Text name = kg::ffi::text(args[0]);                                           \
    if (!name.data) return kg::ffi::raise("TypeError", "kernel: a name is expected first");      \
    if (kg::program::run_kernel(model, name.data, name.size, args + 1, nargs - 1)) return -1;    \
    return kg::ffi::result(ret);                                                                 \
  }                                                                                              \
  KG_EXPORT(read_bandwidth) {                                                                    \
    KG_ARGUMENTS(1);                                                                             \
    if (args[0].type_index != kTVMFFIFloat)                                                      \
      return kg::ffi::raise("TypeError", "read_bandwidth: seconds are expected");                \
    return kg::ffi::result(ret, kg::read_bandwidth(kg::program::state().team, args[0].v_float64)); \
  }
