"""Owns the process that tries grammars: one a line comes in, what is wrong with it goes out."""

import ctypes
import json
import os
import resource
import signal
import sys
from pathlib import Path

from ..errors import KernelgenRuntimeError
from ..sample.structured import Structured
from .grammars import Grammars

PR_SET_PDEATHSIG = 1
MEMORY = 4 << 30
"""bytes of address space; the library ends the process where it wants more"""


def main(arguments: list[str]) -> None:
    """Answer grammars of standard input, until it ends. `arguments`: who started this, and what
    `Grammars` takes.
    """
    parent, tokenizer_file, vocab, end_ids = arguments
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    grammars = Grammars(Path(tokenizer_file), int(vocab), json.loads(end_ids))
    grammars.prepare()
    _say("")
    for line in sys.stdin:
        try:
            grammars.check(Structured.from_json(json.loads(line)))
        except KernelgenRuntimeError as error:
            _say(str(error))
        else:
            _say("")


def _say(fault: str) -> None:
    print(json.dumps(fault), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
