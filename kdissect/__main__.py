"""`python -m kdissect`."""

from __future__ import annotations

import sys

from kdissect.cli.main import main

sys.exit(main())
