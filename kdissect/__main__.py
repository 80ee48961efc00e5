"""`python -m kdissect`."""

from __future__ import annotations

from kdissect.cli.entry import run

if __name__ == "__main__":  # its path is asked for by importing it: spark-submit takes files
    run()
