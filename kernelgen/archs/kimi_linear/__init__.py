"""Decoders that mix gated delta-rule layers with latent attention, routed experts behind both."""

from kernelgen.archs.architecture import Architecture, class_matcher
from kernelgen.archs.kimi_linear.spec import read_spec
from kernelgen.archs.kimi_linear.weights import weight_rules
from kernelgen.lower import lower_decoder

MATCH = class_matcher("KimiLinearForCausalLM", "kimi_linear")

ARCHITECTURE = Architecture(
    name="kimi_linear",
    package=__name__,
    matches=MATCH,
    read=read_spec,
    lower=lower_decoder,
    weights=weight_rules,
)
