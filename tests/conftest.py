"""What all tests share: reproducible Hypothesis runs, where the captures are, captures by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
CAPTURES = ROOT / "captures"

# One profile in every place: no deadline, because kernels compile on first use, and the same examples on every run.
settings.register_profile(
    "default", max_examples=50, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "exhaustive", max_examples=2000, derandomize=False, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def captures() -> Path:
    """The folder of committed captures."""
    return CAPTURES
