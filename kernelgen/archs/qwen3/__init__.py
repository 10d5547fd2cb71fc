"""Dense decoders that norm each head of queries and keys before the rotation."""

from kernelgen.archs.architecture import Architecture, class_matcher
from kernelgen.archs.qwen3.spec import read_spec
from kernelgen.archs.qwen3.weights import weight_rules
from kernelgen.lower import lower_decoder

MATCH = class_matcher("Qwen3ForCausalLM", "qwen3")

ARCHITECTURE = Architecture(
    name="qwen3",
    package=__name__,
    matches=MATCH,
    read=read_spec,
    lower=lower_decoder,
    weights=weight_rules,
)
