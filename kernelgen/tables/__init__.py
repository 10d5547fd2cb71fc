"""Read, validate, look up and merge autotune rows; verdict type; no measuring."""

from kernelgen.tables.key import Bucket, TuningKey, tuning_key
from kernelgen.tables.lookup import LookUp, Tables, Verdict
from kernelgen.tables.row import Row

__all__ = ["Bucket", "LookUp", "Row", "Tables", "TuningKey", "Verdict", "tuning_key"]
