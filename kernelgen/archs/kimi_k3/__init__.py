"""Decoders that mix over depth as well: delta rules and gated latent attention, narrow experts."""

from kernelgen.archs.architecture import Architecture, class_matcher
from kernelgen.archs.kimi_k3.spec import read_spec
from kernelgen.archs.kimi_k3.weights import weight_rules
from kernelgen.lower import lower_decoder

MATCH = class_matcher("KimiK3ForConditionalGeneration", "kimi_k3")

ARCHITECTURE = Architecture(
    name="kimi_k3",
    package=__name__,
    matches=MATCH,
    read=read_spec,
    lower=lower_decoder,
    weights=weight_rules,
)
