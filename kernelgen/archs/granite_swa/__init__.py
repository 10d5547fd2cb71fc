"""Decoders with window and full layers, attention sinks and scalar multipliers."""

from kernelgen.archs.architecture import Architecture, class_matcher
from kernelgen.archs.granite_swa.spec import read_spec
from kernelgen.archs.granite_swa.weights import weight_rules
from kernelgen.lower import lower_decoder

MATCH = class_matcher("GraniteSWAForCausalLM", "granite_swa")

ARCHITECTURE = Architecture(
    name="granite_swa",
    package=__name__,
    matches=MATCH,
    read=read_spec,
    lower=lower_decoder,
    weights=weight_rules,
)
