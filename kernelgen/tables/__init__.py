"""Read, validate, look up and merge autotune rows; verdict type; no measuring."""

from kernelgen.tables.file import Merged, Reading, merge, read_rows, rows_to_text, write_rows
from kernelgen.tables.key import Bucket, TuningKey, tuning_key
from kernelgen.tables.lookup import Tables
from kernelgen.tables.row import Clocks, Row
from kernelgen.tables.verdict import TUNED, LookUp, Verdict

__all__ = [
    "TUNED",
    "Bucket",
    "Clocks",
    "LookUp",
    "Merged",
    "Reading",
    "Row",
    "Tables",
    "TuningKey",
    "Verdict",
    "merge",
    "read_rows",
    "rows_to_text",
    "tuning_key",
    "write_rows",
]
