"""What a publisher's way of timing adds to the device's work: factors on kernels and on launches, and copies.

Sources that time the device alone, by its own clock, add nothing to kernels. Others time a data loader, an
input copy, a task's particulars and a host of their own along with it. Each of these is an effect of the
source, of the job within it, or of the machine, fitted together with the effects of devices
(predictor.models.steps.prior) so that no device has to explain them. Answers leave all of them out but the
usual host's time per launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.features.tables.tiles import FloatArray
from predictor.models.corpus.pytorch_gpu_benchmark import SOURCE as TORCHVISION
from predictor.models.corpus.pytorch_gpu_benchmark import harness_of as torchvision_harness
from predictor.models.corpus.whole_model import WholeModelRow
from predictor.types import Mode, Precision, Runtime

REFERENCES = frozenset({"timm_benchmarks", "neusight-cells", "neusight", "aiconfigurator-ops", "profiles"})
"""Sources that time nothing but the device's work, by its own clock: no harness effect on kernels."""
_COPIED = frozenset({TORCHVISION})
"""Sources in whose iterations the device waits for the copy of its input."""
_WIDE = frozenset({Precision.FP32, Precision.TF32, Precision.FP64})

WORK, HOST, FIXED = "work", "host", "fixed"
MACHINE = "machine"
SLOTS: Mapping[str, tuple[str, float]] = {
    "source": (WORK, 20.0),
    "job": (WORK, 3.0),
    "job mode": (WORK, 3.0),
    MACHINE: (WORK, 3.0),
    "launch": (HOST, 5.0),
    "source launch": (HOST, 0.1),
    "machine launch": (HOST, 2.0),
    "copy": (FIXED, 0.02),
}
"""Effect -> (what it changes, strength of the pull to zero in iterations); `copy` in milliseconds."""
_PINNED = 1e9
MILLISECOND = 1e-3
_FIRST = {"source launch": 1.5}
_LOG_LOWEST, _LOG_HIGHEST = -2.0, 3.0


@dataclass(frozen=True, slots=True)
class Keys:
    """One effect: which of its names each iteration takes, `index` (r,); names[0] adds nothing."""

    names: tuple[str, ...]
    index: NDArray[np.intp]


def harness_keys(rows: Sequence[WholeModelRow], source: NDArray[np.str_]) -> Mapping[str, Keys]:
    """Names of every effect for r iterations of the sources (r,)."""
    listed = [_names(row, str(name)) for row, name in zip(rows, source, strict=True)]
    found = {}
    for j, slot in enumerate(SLOTS):
        texts = [names[j] for names in listed]
        known = ("", *sorted(set(texts) - {""}))
        place = {name: i for i, name in enumerate(known)}
        found[slot] = Keys(known, np.array([place[text] for text in texts], dtype=np.intp))
    return found


def harness_of(row: WholeModelRow, source: str) -> str:
    """Whose way of timing a row is of, empty where nothing is timed but the device."""
    if source in REFERENCES:
        return ""
    return f"{source} {torchvision_harness(row)}" if source == TORCHVISION else source


def launch_name(runtime: Runtime, mode: Mode) -> str:
    """Name of the usual host time per launch."""
    return f"{'eager' if runtime is Runtime.EAGER else 'compiled'}|{mode}"


def _names(row: WholeModelRow, source: str) -> tuple[str, ...]:
    """Of one iteration, in the order of SLOTS."""
    narrow = "wide" if row.precision in _WIDE else "narrow"
    harness = harness_of(row, source)
    job = f"{harness}|{row.model}" if harness else ""
    launched = f"{harness}|{row.mode}" if harness else ""
    return (
        harness,
        job,
        f"{job}|{row.mode}|{narrow}" if job else "",
        f"{harness}|{row.device}" if harness else "",
        launch_name(row.runtime, row.mode),
        launched,
        f"{launched}|{row.device}" if launched else "",
        f"{harness}|{narrow}" if source in _COPIED else "",
    )


@dataclass(frozen=True, slots=True)
class Harness:
    """Fitted effects: slot -> name -> log factor (`copy`: milliseconds)."""

    effects: Mapping[str, Mapping[str, float]]

    @classmethod
    def none(cls) -> Harness:
        """Nothing added by anyone."""
        return cls({slot: {} for slot in SLOTS})

    def work_log(self, keys: Mapping[str, Keys]) -> FloatArray:
        """(r,) log factor on kernels."""
        return self._sum(keys, WORK)

    def host_log(self, keys: Mapping[str, Keys]) -> FloatArray:
        """(r,) log factor on launches."""
        return np.clip(self._sum(keys, HOST), _LOG_LOWEST, _LOG_HIGHEST)

    def fixed_s(self, keys: Mapping[str, Keys]) -> FloatArray:
        """(r,) seconds per iteration."""
        return np.maximum(self._sum(keys, FIXED), 0.0) * MILLISECOND

    def launch_log(self, runtime: Runtime, mode: Mode) -> float:
        """Log factor on the usual host's time per launch."""
        return self.effects["launch"].get(launch_name(runtime, mode), 0.0)

    def _sum(self, keys: Mapping[str, Keys], part: str) -> FloatArray:
        found = np.zeros(len(next(iter(keys.values())).index))
        for slot, (changed, _) in SLOTS.items():
            if changed == part:
                values = [self.effects[slot].get(name, 0.0) for name in keys[slot].names]
                found += np.array(values)[keys[slot].index]
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain values; what no answer reads is left out."""
        return {"launch": {name: round(value, 5) for name, value in self.effects["launch"].items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Harness:
        """Inverse of `to_json`."""
        return cls({slot: dict(data.get(slot, {})) for slot in SLOTS})


def starts(keys: Mapping[str, Keys]) -> Mapping[str, FloatArray]:
    """Where the fit of every name of every slot starts: a host that is far too fast is not seen at all."""
    return {
        slot: np.array([_FIRST.get(slot, 0.0) if name else 0.0 for name in keys[slot].names])
        for slot in SLOTS
    }


def pulls(keys: Mapping[str, Keys]) -> Mapping[str, FloatArray]:
    """Strength of the pull to zero of every name of every slot."""
    return {
        slot: np.array([_PINNED if not name else pull for name in keys[slot].names])
        for slot, (_, pull) in SLOTS.items()
    }
