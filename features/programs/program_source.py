"""Models that make their own programs instead of a graph, e.g. captured torch modules."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol, runtime_checkable

from predictor.features.programs.work import Program
from predictor.types import Mode, Optimizer, Precision, Runtime


@runtime_checkable
class ProgramSource(Protocol):
    """Stands wherever a graph may: gives the program of one iteration of any job."""

    @property
    def key(self) -> Hashable:
        """Identity of what programs are made from."""

    def program(
        self,
        *,
        batch: int | None,
        mode: Mode,
        precision: Precision,
        optimizer: Optimizer,
        runtime: Runtime,
        strict: bool,
    ) -> Program:
        """One iteration on one device. Raises InvalidInput, or UnsupportedOp with `strict`."""
