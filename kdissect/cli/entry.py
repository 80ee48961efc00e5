"""The process behind the command line: its settings, then `main`, then a quick exit."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys


def run() -> None:
    """Run the command line and leave."""
    gc.set_threshold(500_000, 20, 50)  # imports make many objects, and nearly all of them stay
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads for matrices, of which there are none, spin
    os.environ.setdefault("MIMALLOC_ARENA_RESERVE", "32768")  # KiB: Arrow's allocator takes a GB of addresses, else
    from kdissect.cli.main import main

    leave(main(own_process=True))


def leave(code: int) -> None:
    """End the process as `sys.exit` does, but leave its memory to the system: taking thousands of modules' objects
    apart one by one takes longer than to read a small capture."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it has gone
            stream.flush()
    os._exit(code)
