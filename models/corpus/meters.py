"""Who read the watts of each source, so that sensors are not mixed: instrument, scope, what a value averages.

Estimators and sensors of one board differ by up to 40 %; a model is trained on sources of one scope only, and
the bundle names the meter of every source that it learned from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Meter:
    """How a source measured power or energy: `scope` is one of the schema's."""

    instrument: str
    scope: str
    averaged_over: str


METERS: Mapping[str, Meter] = {
    "zeus-nsdi23": Meter("NVML board power", "gpu_board", "a training epoch, data loading included"),
    "gaissa-seaa2023-training": Meter(
        "nvidia-smi board power, once a second", "gpu_board", "a training run, validation included"
    ),
    "ml-energy-leaderboard-v3": Meter(
        "NVML energy counters, all boards of the job", "gpu_board", "steady state of serving"
    ),
    "ml-energy-leaderboard-v2": Meter(
        "NVML energy counters, all boards of the job",
        "gpu_board",
        "steady state of serving, or a batch drawn",
    ),
    "ml-energy-diffusion-v3": Meter(
        "NVML energy counters, all boards of the job", "gpu_board", "a batch drawn"
    ),
    "wilkins-energy-inference": Meter(
        "NVML energy of the boards; RAPL or uProf of the host's processors",
        "gpu_board",
        "one call of generate",
    ),
    "aiconfigurator-power": Meter(
        "NVML board power", "gpu_board", "one kernel back to back; pauses read low and are closed"
    ),
    "mlperf-training-power": Meter(
        "power supplies of the node (AC), every one to two seconds", "node_ac", "a run from start to stop"
    ),
}
"""Source -> its meter, for every source with rows of power or energy."""
