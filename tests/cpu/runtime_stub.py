"""A compiled library of a few lines behind the boundary, for what only a real process shows."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from runtime_fakes import VOCAB, manifest_json, target_json
from safetensors.torch import save_file
from tvm_ffi import libinfo

SOURCE = r"""
#include <tvm/ffi/c_api.h>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <algorithm>
#include <chrono>
#include <thread>
#define EXPORT(name) extern "C" __attribute__((visibility("default"))) int \
  __tvm_ffi_##name(void*, const TVMFFIAny* args, int32_t nargs, TVMFFIAny* ret)
static std::map<std::string, const void*> bound;
static int64_t threads = 0;
static std::chrono::steady_clock::time_point due;
static int fail(const char* message) {
  TVMFFIErrorSetRaisedFromCStr("ValueError", message);
  return -1;
}
static void none(TVMFFIAny* ret) { std::memset(ret, 0, sizeof *ret); }
static const DLTensor* tensor(const TVMFFIAny& a) {
  return a.type_index == kTVMFFIDLTensorPtr ? (const DLTensor*)a.v_ptr
                                            : TVMFFITensorGetDLTensorPtr(a.v_obj);
}
static int give(TVMFFIAny* ret, int64_t value) {
  none(ret);
  ret->type_index = kTVMFFIInt;
  ret->v_int64 = value;
  return 0;
}
EXPORT(kg_abi) { return give(ret, ABI); }
EXPORT(kg_isa) {
  TVMFFIByteArray text{"avx2", 4};
  return TVMFFIStringFromByteArray(&text, ret);
}
EXPORT(kg_set_threads) { threads = args[0].v_int64; none(ret); return 0; }
EXPORT(read_bandwidth) {
  none(ret);
  ret->type_index = kTVMFFIFloat;
  ret->v_float64 = 12.5;
  return 0;
}
EXPORT(bind) {
  std::string name;
  if (args[0].type_index == kTVMFFIRawStr) name = args[0].v_c_str;
  else if (args[0].type_index == kTVMFFISmallStr) name = args[0].v_bytes;
  else name = TVMFFIBytesGetByteArrayPtr(args[0].v_obj)->data;
  if (name == "REFUSED") return fail("REFUSED: wrong size");
  bound[name] = tensor(args[1])->data;
  none(ret);
  return 0;
}
EXPORT(step) {
  const int32_t* a = (const int32_t*)tensor(args[1])->data;
  const int32_t* counts = a + COUNTS;
  int32_t* sampled = (int32_t*)bound["sampled"];
  int32_t* last = (int32_t*)bound["last_sampled"];
  float* logits = (float*)bound["logits"];
  if (threads < 1 || counts[0] < 1) return fail("nothing to do");
  if (STEP_MICROSECONDS) std::this_thread::sleep_until(due);
  const auto now = std::chrono::steady_clock::now();
  due = std::max(due, now) + std::chrono::microseconds(STEP_MICROSECONDS);
  for (int i = 0; i < counts[2]; ++i) {
    int t = a[LOGIT_TOKEN + i], r = 0;
    while (a[ROW_QUERY_START + r + 1] <= t) ++r;
    int position = a[ROW_SEQ_LEN + r] - a[ROW_QUERY_START + r + 1] + t;
    int token = a[TOKEN_IDS + t] < 0 ? last[a[ROW_SLOT + r]] : a[TOKEN_IDS + t];
    int next = (31 * token + position) % VOCAB;
    for (int v = 0; v < VOCAB; ++v) logits[i * VOCAB + v] = v == next ? 1.0f : 0.0f;
    sampled[i] = a[LOGIT_ROW + i] < 0 ? -1 : next;
    if (sampled[i] >= 0) last[a[ROW_SLOT + r]] = next;
  }
  none(ret);
  return 0;
}
"""


def following(prompt: list[int], count: int) -> list[int]:
    """The ids that the library's rule gives after `prompt`."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append((31 * tokens[-1] + len(tokens) - 1) % VOCAB)
    return tokens[len(prompt) :]


def compile_stub(path: Path, values: dict[str, Any], abi: int = 1, step_us: int = 0) -> Path:
    """Compile the library for the manifest `values`; takes about a second.

    A step ends `step_us` microseconds after the last one, at the earliest.
    """
    offsets = {f["name"].upper(): f["offset"] for f in target_json(values)["args"]["fields"]}
    defines = {"ABI": abi, "VOCAB": VOCAB, "STEP_MICROSECONDS": step_us}
    defines |= {k: v for k, v in offsets.items() if "." not in k}
    lines = [f"#define {name} {value}" for name, value in defines.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".cpp")
    source.write_text("\n".join(lines) + SOURCE)
    folder = Path(libinfo.find_libtvm_ffi()).parent
    command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
    command += [f"-I{include}" for include in libinfo.include_paths()]
    command += [str(source), "-o", str(path), f"-L{folder}", "-ltvm_ffi"]
    subprocess.run(command, check=True)
    return path


def write_checkpoint(folder: Path) -> Path:
    """Weights, a tokenizer whose words are "w0" … and a chat template."""
    folder.mkdir()
    tensors = {"embed.weight": torch.zeros(VOCAB, 6), "norm.weight": torch.ones(6)}
    save_file(tensors, str(folder / "model.safetensors"))
    vocab = {f"w{i}": i for i in range(VOCAB)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}w1 {{ m.content }} {% endfor %}w2"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


def write_artifact(folder: Path, step_us: int = 0, **sizes: int) -> Path:
    """A build folder around the compiled stub; `sizes` are those of `manifest_json`."""
    values = manifest_json(**sizes)  # type: ignore[arg-type]
    values["chat"]["eos_token_ids"] = []
    compile_stub(folder / "lib" / "cpu_avx2.so", values, step_us=step_us)
    (folder / "manifest.json").write_text(json.dumps(values))
    return folder


def write_cases(path: Path) -> dict[str, np.ndarray]:
    """Recorded cases as oracles write them."""
    arrays = {
        "0/prompt_ids": np.array([1, 2, 3]),
        "0/fed_ids": np.array([4, 5]),
        "0/name": np.array("first"),
        "1/prompt_ids": np.arange(70) % VOCAB,
        "1/fed_ids": np.zeros(0, np.int64),
    }
    np.savez_compressed(path, **arrays)
    return arrays
