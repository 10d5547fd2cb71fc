// Launches: operands of the generated tables become kernel parameters on the caller's stream.
#pragma once
#include <tvm/ffi/extra/c_env_api.h>

#include <cinttypes>

#include "buffers.h"

namespace kg {
namespace cuda {

constexpr int MAX_PARAMETERS = 40, MAX_MATRICES = 8;

// Where a parameter's value comes from. Numbers: of slots, weights, bound buffers, step values and layers; words
// into the arguments; the integer itself; of matrices.
enum class Kind : uint8_t { slot, weight, bound, step, args, layer_offset, integer, matrix };
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
constexpr Ref matrix(int32_t n) { return {Kind::matrix, n}; }

// What a descriptor describes: rows of whole multiples of 16 bytes, one after another.
struct Matrix {
  Ref start;
  int32_t rows, columns;
};
// How the blocks of a descriptor are copied: type of the elements, order in shared memory, columns and rows of one copy.
struct Box {
  int element, swizzle;
  uint32_t sides[2];
};
// A kernel's parameter; `operand` is its place in the planned kernel's signature, or −1. A descriptor has a box.
struct Parameter {
  const char* name;
  int operand;
  Box box;
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
struct Launches {
  const Launch* first;
  int count;
};
enum class Following : int { refine, keep_masks, logprobs, COUNT };
struct Plan {
  bool decode;
  int size;
  int rows;  // of logits and sampled ids that have to be bound
  const Launch* launches;
  int launch_count;
  const uint64_t* slots;  // bytes from the start of the workspace
  uint64_t workspace_bytes;
  Launches following[(int)Following::COUNT];  // on the args of a step, behind it
};
struct Model {
  Code code;
  int64_t args_words;
  uint64_t step_values[3];  // bytes from the start of the workspace
  int64_t counters;
  int64_t state_bytes;  // of a page of states; 0: there are none
  const Buffer* buffers;
  const Weight* weights;
  int weight_count;
  const int64_t* layers;  // byte of each layer's place in a page
  const Kernel* kernels;
  const Planned* planned;
  int planned_count;
  const Ref* refs;
  const Matrix* matrices;
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
    case Kind::matrix: return value_of(model, plan, model.matrices[ref.number].start, words);
  }
  return 0;
}

inline Values values_of(const Model& model, const Plan& plan, const Launch& launch, const int32_t* words) {
  Values values;
  values.count = model.kernels[launch.kernel].parameter_count;
  for (int i = 0; i < values.count; ++i) values.word[i] = value_of(model, plan, model.refs[launch.refs + i], words);
  return values;
}

// A descriptor as Triton's kernels take it: the map itself, then sides and strides that they do not look at.
struct Descriptor {
  TensorMap map;
  int32_t sides[2];
  int64_t strides[2];
};
constexpr int DESCRIPTOR_PARAMETERS = 5;

// Made anew for every launch: that takes less than the launch itself, and nothing has to be kept in step with bind.
inline Result describe(const Matrix& matrix, const Box& box, uint64_t start, Descriptor& made) {
  const uint64_t sides[2] = {(uint64_t)matrix.columns, (uint64_t)matrix.rows};
  const uint64_t row_bytes = sides[0] * (box.element == FLOAT32 ? 4 : 2);
  const uint32_t every[2] = {1, 1};
  made.sides[0] = matrix.rows, made.sides[1] = matrix.columns;
  made.strides[0] = matrix.columns, made.strides[1] = 1;
  return driver().cuTensorMapEncodeTiled(&made.map, box.element, 2, reinterpret_cast<void*>(start), sides, &row_bytes, box.sides, every,
                                         NO_INTERLEAVE, box.swizzle, PROMOTE_TO_128_BYTES, ZEROS_OUTSIDE);
}

// Raises a failed launch with everything that went into it; `what` says which call failed.
inline int raise_launch(const char* what, const Model& model, const Launch& launch, const Values& values, Result result) {
  const Image& image = model.code.images[launch.kernel];
  const Kernel& kernel = model.kernels[launch.kernel];
  char error[160], layer[24] = "", given[320];
  driver().describe(what, result, error, sizeof error);
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
  void* addresses[MAX_PARAMETERS + MAX_MATRICES * (DESCRIPTOR_PARAMETERS - 1) + 2];
  Descriptor descriptors[MAX_MATRICES];
  int used = 0, described = 0;
  for (int i = 0; i < values.count; ++i) {
    const Box& box = model.kernels[launch.kernel].parameters[i].box;
    if (!box.sides[0]) {
      addresses[used++] = &values.word[i];
      continue;
    }
    Descriptor& d = descriptors[described++];
    const Matrix& matrix = model.matrices[model.refs[launch.refs + i].number];
    if (const Result result = describe(matrix, box, values.word[i], d)) return raise_launch("cuTensorMapEncodeTiled", model, launch, values, result);
    void* const parts[DESCRIPTOR_PARAMETERS] = {&d.map, &d.sides[0], &d.sides[1], &d.strides[0], &d.strides[1]};
    for (void* part : parts) addresses[used++] = part;
  }
  uint64_t nothing = 0;  // the two hidden pointers of Triton's kernels: scratch and profile
  addresses[used++] = &nothing, addresses[used++] = &nothing;
  LaunchAttribute attributes[3] = {};
  unsigned count = 0;
  const auto set = [&](int id, unsigned number = 1) {
    LaunchAttribute& attribute = attributes[count++];
    attribute.id = id;
    attribute.value.sides[0] = number;
    return &attribute;
  };
  if (image.pdl && overlap) set(PROGRAMMATIC_STREAM_SERIALIZATION);
  if (image.cooperative) set(COOPERATIVE);
  if (image.cluster > 1) {
    LaunchAttribute* cluster = set(CLUSTER_DIMENSION, (unsigned)image.cluster);
    cluster->value.sides[1] = cluster->value.sides[2] = 1;
  }
  const LaunchConfig config{launch.grid[0], launch.grid[1], launch.grid[2], image.threads, 1, 1, image.shared_bytes, stream, attributes, count};
  const Result result = driver().cuLaunchKernelEx(&config, function, addresses, nullptr);
  return result ? raise_launch("cuLaunchKernelEx", model, launch, values, result) : 0;
}

}  // namespace cuda
}  // namespace kg
