// The step program of a GPU: walks the tables that the generator printed. Exports bind, load, step and kernel.
//
// A step launches everything in order on the caller's stream and returns: it reads nothing back, neither allocates
// nor waits, and may be captured into a graph once its kernels are loaded. Counts and ids lie on the GPU, so that
// kernels, not this program, keep them within bounds.
#pragma once
#include "launch.h"

namespace kg {
namespace cuda {

constexpr int64_t FIRST_LAYER = 1000;  // what names a layer among the operands of a kernel, plus its number

inline int bind(const Model& model, const char* name, size_t length, const TVMFFIAny& arg) {
  const auto is = [&](const char* other) { return strlen(other) == length && memcmp(name, other, length) == 0; };
  for (int i = 0; i < (int)BOUND_COUNT; ++i)
    if (is(model.buffers[i].name)) return bind_buffer(model.buffers[i], (Bound)i, arg);
  for (int i = 0; i < model.weight_count; ++i)
    if (is(model.weights[i].name)) return bind_weight(model.weights[i], i, arg);
  return ffi::raise("ValueError", "%.*s: no buffer of this name", (int)(length < 200 ? length : 200), name);
}

inline int find_plan(const Model& model, const TVMFFIAny& arg, const Plan*& plan) {
  if (arg.type_index != kTVMFFIInt) return ffi::raise("TypeError", "plan: an integer is expected");
  if (arg.v_int64 < 0 || arg.v_int64 >= model.plan_count)
    return ffi::raise("ValueError", "plan %lld of %d", (long long)arg.v_int64, model.plan_count);
  plan = &model.plans[arg.v_int64];
  return 0;
}

// Everything bound, and large enough for the plan.
inline int check_bound(const Model& model, const Plan& plan) {
  const Buffers& b = buffers();
  const int64_t least[BOUND_COUNT] = {plan.rows, plan.rows, 1, (int64_t)plan.workspace_bytes, 1, model.counters, 0, 0, 0, model.state_bytes > 0};
  for (int i = 0; i < (int)BOUND_COUNT; ++i) {
    if (!b.bound[i] && least[i] > 0) return ffi::raise("RuntimeError", "%s: not bound", model.buffers[i].name);
    if (b.units[i] < least[i])
      return ffi::raise("ValueError", "%s: holds %lld, the %s plan of size %d needs %lld", model.buffers[i].name,
                        (long long)b.units[i], plan.decode ? "decode" : "mixed", plan.size, (long long)least[i]);
  }
  for (int i = 0; i < model.weight_count; ++i)
    if (!b.weights[i]) return ffi::raise("RuntimeError", "%s: not bound", model.weights[i].name);
  return 0;
}

inline int check_args(const Model& model, const TVMFFIAny& arg, const int32_t*& words) {
  const DLTensor* t = typed_tensor(arg, "args", Element::i32, 64);
  if (!t || check_elements(t, "args", model.args_words, "words")) return -1;
  gpu().index = t->device.device_id;
  words = static_cast<const int32_t*>(ffi::data(t));
  return 0;
}

// Loads every kernel of a plan without launching one: before a capture, during which nothing may be loaded.
inline int load_plan(const Model& model, const Plan& plan) {
  Current context;
  if (open_gpu(model.code) || context.enter()) return -1;
  for (int i = 0; i < plan.launch_count; ++i) {
    Handle function;
    if (function_of(model.code, plan.launches[i].kernel, function)) return -1;
  }
  for (const Launches& after : plan.following)
    for (int i = 0; i < after.count; ++i) {
      Handle function;
      if (function_of(model.code, after.first[i].kernel, function)) return -1;
    }
  return 0;
}

inline int run_step(const Model& model, const Plan& plan, const TVMFFIAny& arg) {
  const int32_t* words = nullptr;
  Current context;
  if (check_args(model, arg, words) || check_bound(model, plan) || open_gpu(model.code) || context.enter()) return -1;
  const Handle stream = TVMFFIEnvGetStream(kDLCUDA, gpu().index);
  for (int i = 0; i < plan.launch_count; ++i) {
    const Launch& launch = plan.launches[i];
    Values values = values_of(model, plan, launch, words);
    // The first one waits for whatever the stream held before: copies and kernels that know nothing of this.
    if (run_launch(model, launch, values, stream, i > 0)) return -1;
  }
  return 0;
}

// Launches what follows a step, on the same args.
inline int run_following(const Model& model, const Plan& plan, Following what, const TVMFFIAny& arg) {
  const int32_t* words = nullptr;
  Current context;
  if (check_args(model, arg, words) || check_bound(model, plan)) return -1;
  const Launches& after = plan.following[(int)what];
  if (after.count == 0) return ffi::raise("RuntimeError", "built without what follows a step");
  const Buffers& b = buffers();
  const int64_t least[] = {b.units[LAST_SAMPLED], what == Following::logprobs ? plan.rows : 0, what == Following::keep_masks ? plan.rows : 0};
  for (int i = 0; i < 3; ++i)
    if (b.units[RULES + i] < least[i])
      return ffi::raise("ValueError", "%s: holds %lld, %lld are needed", model.buffers[RULES + i].name, (long long)b.units[RULES + i], (long long)least[i]);
  if (open_gpu(model.code) || context.enter()) return -1;
  const Handle stream = TVMFFIEnvGetStream(kDLCUDA, gpu().index);
  for (int i = 0; i < after.count; ++i) {
    Values values = values_of(model, plan, after.first[i], words);
    if (run_launch(model, after.first[i], values, stream, i > 0)) return -1;
  }
  return 0;
}

// Whether what a reference leads to has been bound.
inline int check_ref(const Model& model, const Plan& plan, Ref ref) {
  if (ref.kind == Kind::matrix) ref = model.matrices[ref.number].start;
  const Buffers& b = buffers();
  const char* missing = nullptr;
  if (ref.kind == Kind::weight && !b.weights[ref.number]) missing = model.weights[ref.number].name;
  if (ref.kind == Kind::bound && !b.bound[ref.number]) missing = model.buffers[ref.number].name;
  const bool inside = ref.kind == Kind::slot || ref.kind == Kind::step;
  if (inside && (uint64_t)b.units[WORKSPACE] < plan.workspace_bytes) missing = model.buffers[WORKSPACE].name;
  return missing ? ffi::raise("RuntimeError", "%s: not bound, or too small for the plan", missing) : 0;
}

// Puts the tensors that stand for operands in the place of the plan's own; None, or the number of a step value or of
// a layer, leaves an operand as it is.
inline int replace_operands(const Model& model, const Plan& plan, const Launch& launch, const TVMFFIAny* operands, Values& values) {
  const Kernel& kernel = model.kernels[launch.kernel];
  for (int i = 0; i < kernel.parameter_count; ++i) {
    const int place = kernel.parameters[i].operand;
    const int type = place < 0 ? (int)kTVMFFINone : operands[place].type_index;
    if (type == kTVMFFINone || type == kTVMFFIInt) {
      if (check_ref(model, plan, model.refs[launch.refs + i])) return -1;
      continue;
    }
    char what[96];
    snprintf(what, sizeof what, "%s: operand %d", model.planned[launch.planned].name, place);
    const DLTensor* t = gpu_tensor(operands[place], what, 16);
    if (!t) return -1;
    values.word[i] = (uint64_t)ffi::data(t);
  }
  return 0;
}

// The layer, numbered among those with a cache, that the operands name; −1 where none does.
inline int64_t wanted_layer(const TVMFFIAny* operands, int count) {
  for (int i = 0; i < count; ++i)
    if (operands[i].type_index == kTVMFFIInt && operands[i].v_int64 >= FIRST_LAYER) return operands[i].v_int64 - FIRST_LAYER;
  return -1;
}

// Whether a launch works on the cache of a layer; any launch does for layer −1.
inline bool serves_layer(const Model& model, const Launch& launch, int64_t layer) {
  bool serves = layer < 0;
  for (int i = 0; i < model.kernels[launch.kernel].parameter_count; ++i) {
    const Ref ref = model.refs[launch.refs + i];
    serves |= ref.kind == Kind::layer_offset && ref.number == layer;
  }
  return serves;
}

// Runs one planned kernel alone: all of its launches, as the plan has them where it uses the kernel first, or first
// for the layer that an operand names.
inline int run_kernel(const Model& model, const char* name, size_t length, const Plan& plan, const TVMFFIAny& arg,
                      const TVMFFIAny* operands, int count) {
  const int32_t* words = nullptr;
  Current context;
  const int64_t layer = wanted_layer(operands, count);
  const auto planned = [&](int i) -> const Planned& { return model.planned[plan.launches[i].planned]; };
  const auto named = [&](int i) { return strlen(planned(i).name) == length && memcmp(planned(i).name, name, length) == 0; };
  int i = 0;
  while (i < plan.launch_count && !(named(i) && serves_layer(model, plan.launches[i], layer))) ++i;
  if (i == plan.launch_count)
    return ffi::raise("ValueError", "%.*s: the plan has no kernel of this name%s", (int)(length < 200 ? length : 200), name,
                      layer < 0 ? "" : " for the layer");
  if (count != planned(i).operands)
    return ffi::raise("TypeError", "%s: %d operands are expected, got %d", planned(i).name, planned(i).operands, count);
  if (check_args(model, arg, words) || open_gpu(model.code) || context.enter()) return -1;
  const Handle stream = TVMFFIEnvGetStream(kDLCUDA, gpu().index);
  const int first = i;
  do {
    const Launch& launch = plan.launches[i];
    Values values = values_of(model, plan, launch, words);
    if (replace_operands(model, plan, launch, operands, values)) return -1;
    if (run_launch(model, launch, values, stream, i > first)) return -1;
  } while (++i < plan.launch_count && plan.launches[i].pass > 0);
  return 0;
}

inline int isa(const Model& model, TVMFFIAny* ret) {
  char text[16];
  snprintf(text, sizeof text, "sm_%d", model.code.sm);
  return ffi::result(ret, text);
}

}  // namespace cuda
}  // namespace kg

#define KG_EXPORT_FOLLOWING(model, name)                                                           \
  KG_EXPORT(name) {                                                                                \
    KG_ARGUMENTS(2);                                                                               \
    const kg::cuda::Plan* plan;                                                                    \
    if (kg::cuda::find_plan(model, args[0], plan)) return -1;                                      \
    if (kg::cuda::run_following(model, *plan, kg::cuda::Following::name, args[1])) return -1;      \
    return kg::ffi::result(ret);                                                                   \
  }

// The library's functions; `model` is the generated table.
#define KG_EXPORT_PROGRAM(model)                                                                   \
  KG_EXPORT(kg_abi) { return kg::ffi::result(ret, (int64_t)1); }                                   \
  KG_EXPORT(kg_isa) { return kg::cuda::isa(model, ret); }                                          \
  KG_EXPORT(kg_devices) {                                                                          \
    char text[8192];                                                                               \
    if (kg::cuda::devices(text, sizeof text)) return -1;                                           \
    return kg::ffi::result(ret, (const char*)text);                                                \
  }                                                                                                \
  KG_EXPORT(bind) {                                                                                \
    KG_ARGUMENTS(2);                                                                               \
    const kg::ffi::Text name = kg::ffi::text(args[0]);                                             \
    if (!name.data) return kg::ffi::raise("TypeError", "bind: a name and a tensor are expected");  \
    if (kg::cuda::bind(model, name.data, name.size, args[1])) return -1;                           \
    return kg::ffi::result(ret);                                                                   \
  }                                                                                                \
  KG_EXPORT(load) {                                                                                \
    KG_ARGUMENTS(1);                                                                               \
    const kg::cuda::Plan* plan;                                                                    \
    if (kg::cuda::find_plan(model, args[0], plan) || kg::cuda::load_plan(model, *plan)) return -1; \
    return kg::ffi::result(ret);                                                                   \
  }                                                                                                \
  KG_EXPORT(step) {                                                                                \
    KG_ARGUMENTS(2);                                                                               \
    const kg::cuda::Plan* plan;                                                                    \
    if (kg::cuda::find_plan(model, args[0], plan)) return -1;                                      \
    if (kg::cuda::run_step(model, *plan, args[1])) return -1;                                      \
    return kg::ffi::result(ret);                                                                   \
  }                                                                                                \
  KG_EXPORT_FOLLOWING(model, refine)                                                               \
  KG_EXPORT_FOLLOWING(model, keep_masks)                                                           \
  KG_EXPORT_FOLLOWING(model, logprobs)                                                             \
  KG_EXPORT(kernel) {                                                                              \
    if (nargs < 3) return kg::ffi::raise("TypeError", "kernel: name, plan, args and operands");    \
    const kg::ffi::Text name = kg::ffi::text(args[0]);                                             \
    const kg::cuda::Plan* plan;                                                                    \
    if (!name.data) return kg::ffi::raise("TypeError", "kernel: a name is expected first");        \
    if (kg::cuda::find_plan(model, args[1], plan)) return -1;                                      \
    if (kg::cuda::run_kernel(model, name.data, name.size, *plan, args[2], args + 3, nargs - 3)) return -1; \
    return kg::ffi::result(ret);                                                                   \
  }
