"""Decoders with routed experts beside a shared one, window and full layers, attention sinks."""

from kernelgen.archs.architecture import Architecture, class_matcher
from kernelgen.archs.granitemoe_swa.spec import read_spec
from kernelgen.archs.granitemoe_swa.weights import weight_rules
from kernelgen.lower import lower_decoder

MATCH = class_matcher("GraniteMoeSWAForCausalLM", "granitemoe_swa")

ARCHITECTURE = Architecture(
    name="granitemoe_swa",
    package=__name__,
    matches=MATCH,
    read=read_spec,
    lower=lower_decoder,
    weights=weight_rules,
)
