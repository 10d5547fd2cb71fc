// Launches: operands of the generated tables become kernel parameters on the caller's stream.
#pragma once
#include <tvm/ffi/extra/c_env_api.h>

#include <cinttypes>

#include "buffers.h"

namespace kg {
namespace cuda {

constexpr int MAX_PARAMETERS = 40;

// Where a parameter's value comes from. Numbers: of slots, weights, bound buffers, step values and layers; words
// into the arguments; the integer itself.
enum class Kind : uint8_t { slot, weight, bound, step, args, layer_offset, integer };
enum StepValue : uint32_t { TOKEN_IDS, POSITIONS, ROWS };
struct Ref {
  Kind kind;
  int32_t number;
};
constexpr Ref slot(int32_t n) { return {Kind::slot, n}; }
constexpr Ref weight(int32_t n) { return {Kind::weight, n}; }
constexpr Ref bound(Bound n) { return {Kind::bound, (int32_t)n}; }
constexpr Ref value(StepValue n) { return {Kind::step, (int32_t)n}; }
constexpr Ref args(int32_t word) { return {Kind::args, word}; }
constexpr Ref layer_offset(int32_t n) { return {Kind::layer_offset, n}; }
constexpr Ref integer(int32_t n) { return {Kind::integer, n}; }

// A kernel's parameter; `operand` is its place in the planned kernel's signature, or −1.
struct Parameter {
  const char* name;
  int operand;
};
struct Kernel {
  const Parameter* parameters;
  int parameter_count;
};
// One launch of a step: `planned` is the planned kernel that it does the work of (in `pass` + 1 launches), `refs`
// where its parameters start in the table of references.
struct Launch {
  int kernel, planned, pass, layer;
  unsigned grid[3];
  int refs;
};
struct Planned {
  const char* name;
  int operands;
};
struct Plan {
  bool decode;
  int size;
  int rows;  // of logits and sampled ids that have to be bound
  const Launch* launches;
  int launch_count;
  const uint64_t* slots;  // bytes from the start of the workspace
  uint64_t workspace_bytes;
};
struct Model {
  Code code;
  int64_t args_words;
  uint64_t step_values[3];  // bytes from the start of the workspace
  int64_t counters;
  const Buffer* buffers;
  const Weight* weights;
  int weight_count;
  const int64_t* layers;  // byte of each layer's place in a page
  const Kernel* kernels;
  const Planned* planned;
  int planned_count;
  const Ref* refs;
  const Plan* plans;
  int plan_count;
};

// The values of a launch's parameters, as the driver wants them: one address each. Narrow ones lie in the low bytes.
struct Values {
  uint64_t word[MAX_PARAMETERS];
  int count;
};

inline uint64_t value_of(const Model& model, const Plan& plan, Ref ref, const int32_t* words) {
  const Buffers& b = buffers();
  const auto workspace = [&](uint64_t offset) { return (uint64_t)b.bound[WORKSPACE] + offset; };
  switch (ref.kind) {
    case Kind::slot: return workspace(plan.slots[ref.number]);
    case Kind::weight: return (uint64_t)b.weights[ref.number];
    case Kind::bound: return (uint64_t)b.bound[ref.number];
    case Kind::step: return workspace(model.step_values[ref.number]);
    case Kind::args: return (uint64_t)(words + ref.number);
    case Kind::layer_offset: return (uint64_t)model.layers[ref.number];
    case Kind::integer: return (uint64_t)(int64_t)ref.number;
  }
  return 0;
}

inline Values values_of(const Model& model, const Plan& plan, const Launch& launch, const int32_t* words) {
  Values values;
  values.count = model.kernels[launch.kernel].parameter_count;
  for (int i = 0; i < values.count; ++i) values.word[i] = value_of(model, plan, model.refs[launch.refs + i], words);
  return values;
}

// Raises a failed launch with everything that went into it.
inline int raise_launch(const Model& model, const Launch& launch, const Values& values, Result result) {
  const Image& image = model.code.images[launch.kernel];
  const Kernel& kernel = model.kernels[launch.kernel];
  char error[160], layer[24] = "", given[320];
  driver().describe("cuLaunchKernelEx", result, error, sizeof error);
  if (launch.layer >= 0) snprintf(layer, sizeof layer, " of layer %d", launch.layer);
  size_t used = 0;
  given[0] = 0;
  for (int i = 0; i < values.count && used < sizeof given; ++i)
    used += (size_t)snprintf(given + used, sizeof given - used, "%s%s=0x%" PRIx64, i ? ", " : "", kernel.parameters[i].name, values.word[i]);
  return ffi::raise("RuntimeError", "%s%s: %s; grid %u x %u x %u, %u threads, %u bytes shared, %s", image.name, layer, error,
                    launch.grid[0], launch.grid[1], launch.grid[2], image.threads, image.shared_bytes, given);
}

// Launches on `stream`; `overlap` lets a kernel made for it start before its predecessor has ended.
inline int run_launch(const Model& model, const Launch& launch, Values& values, Handle stream, bool overlap) {
  if (launch.grid[0] == 0 || launch.grid[1] == 0 || launch.grid[2] == 0) return 0;
  const Image& image = model.code.images[launch.kernel];
  Handle function;
  if (function_of(model.code, launch.kernel, function)) return -1;
  void* addresses[MAX_PARAMETERS + 2];
  for (int i = 0; i < values.count; ++i) addresses[i] = &values.word[i];
  uint64_t nothing = 0;  // the two hidden pointers of Triton's kernels: scratch and profile
  addresses[values.count] = addresses[values.count + 1] = &nothing;
  LaunchAttribute attributes[2] = {};
  unsigned count = 0;
  const auto set = [&](int id) {
    attributes[count].id = id;
    attributes[count++].value.number = 1;
  };
  if (image.pdl && overlap) set(PROGRAMMATIC_STREAM_SERIALIZATION);
  if (image.cooperative) set(COOPERATIVE);
  const LaunchConfig config{launch.grid[0], launch.grid[1], launch.grid[2], image.threads, 1, 1, image.shared_bytes, stream, attributes, count};
  const Result result = driver().cuLaunchKernelEx(&config, function, addresses, nullptr);
  return result ? raise_launch(model, launch, values, result) : 0;
}

}  // namespace cuda
}  // namespace kg
