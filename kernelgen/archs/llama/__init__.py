"""Pre-norm decoders with rotary grouped-query attention and gated MLPs."""

from kernelgen.archs.architecture import Architecture, class_matcher
from kernelgen.archs.llama.spec import read_spec
from kernelgen.archs.llama.weights import weight_rules
from kernelgen.lower import lower_decoder

MATCH = class_matcher("LlamaForCausalLM", "llama")

ARCHITECTURE = Architecture(
    name="llama",
    package=__name__,
    matches=MATCH,
    read=read_spec,
    lower=lower_decoder,
    weights=weight_rules,
)
