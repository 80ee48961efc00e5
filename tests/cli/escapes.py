"""A run of kdissect that tries, from inside its reading, what a sandbox refuses.

`python -m tests.cli.escapes ARGUMENTS` runs the command line so. Each thread that reads writes a line of JSON to
standard error: tries by name, and whether each was refused.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

MARK = "escapes: "
SECRET = "KDISSECT_TEST_SECRET"
"""Variable with the path of a file that no command names."""
LOCK = threading.Lock()
seen: set[int] = set()


def tries() -> dict[str, Callable[[], Any]]:
    """What is tried."""
    secret = os.environ[SECRET]
    beside = os.path.join(os.path.dirname(secret), "new")
    return {
        "open another file": lambda: open(secret).close(),
        "list another folder": lambda: os.listdir(os.path.dirname(secret)),
        "write another file": lambda: open(beside, "w").close(),
        "remove another file": lambda: os.unlink(secret + ".removed"),
        "change a mode": lambda: os.chmod(secret, 0o777),
        "connect": lambda: socket.create_connection(("127.0.0.1", 9), timeout=1),
        "make a packet socket": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
        "start a program": lambda: subprocess.run(["/bin/true"], check=True),
        "run a program from memory": run_from_memory,
        "read another process's environment": lambda: open(f"/proc/{os.getppid()}/environ", "rb").close(),
        "signal another process": lambda: os.kill(os.getppid(), 0),
    }


def run_from_memory() -> None:
    """Raises OSError where a file in memory cannot be made, or not be run."""
    file = os.memfd_create("x", 0)
    try:
        with open("/usr/bin/true", "rb") as program:
            os.write(file, program.read())
    except OSError:
        os.write(file, b"#!/bin/true\n")
    subprocess.run([f"/proc/self/fd/{file}"], check=True, pass_fds=[file])


def attempt() -> None:
    """Tries once in each thread."""
    with LOCK:
        if threading.get_ident() in seen:
            return
        seen.add(threading.get_ident())
    outcome = {}
    for name, one in tries().items():
        try:
            one()
            outcome[name] = "works"
        except (PermissionError, subprocess.SubprocessError):
            outcome[name] = "refused"
        except Exception as error:
            outcome[name] = f"{type(error).__name__}: {error}"
    os.write(2, (MARK + json.dumps(outcome) + "\n").encode())


def main() -> None:
    """Plants the tries where packets are scanned and where rows are made, then runs the command line."""
    import importlib.abc
    import importlib.machinery

    places = {"kdissect.net.scanner": ("Scanner", "scan"), "kdissect.tables.builder": ("TableBuilder", "feed")}

    class Planting(importlib.abc.MetaPathFinder):
        """Wraps a method when its module is imported: an import ahead of time would start threads."""

        def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
            if name not in places:
                return None
            found = importlib.machinery.PathFinder.find_spec(name, path)
            assert found is not None
            assert found.loader is not None
            load = found.loader.exec_module

            def load_and_wrap(module: Any) -> None:
                load(module)
                owner, method = places[name]
                plant(getattr(module, owner), method)

            found.loader.exec_module = load_and_wrap  # type: ignore[method-assign]
            return found

    sys.meta_path.insert(0, Planting())
    from kdissect.cli.entry import run

    run()


def plant(owner: Any, method: str) -> None:
    """Has a method try to escape first."""
    original = getattr(owner, method, None)
    if original is None:
        return

    def wrapped(*arguments: Any, **options: Any) -> Any:
        attempt()
        return original(*arguments, **options)

    setattr(owner, method, wrapped)


if __name__ == "__main__":
    main()
