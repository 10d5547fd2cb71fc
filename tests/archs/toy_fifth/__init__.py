"""A decoder that no one ships: attention and MLP side by side, squared ReLU, half without RoPE."""

from kernelgen.archs.architecture import Architecture, class_matcher
from toy_fifth.lower import lower
from toy_fifth.spec import read_spec
from toy_fifth.weights import weight_rules

MATCH = class_matcher("ToyFifthForCausalLM", "toy_fifth")

ARCHITECTURE = Architecture(
    name="toy_fifth",
    package=__name__,
    matches=MATCH,
    read=read_spec,
    lower=lower,
    weights=weight_rules,
)
