"""Measured power as samples: what ran, as a program priced by our own op times, and the watts that were read.

The publishers name a network, a data set and a batch; the sizes that they leave open are fixed here, once:

- SQuAD fine-tuning runs on 384 tokens (the usual window), Sentiment140 on 64: at that length the published
epoch times
  of the V100 give the same FLOP/s as SQuAD's.
- CIFAR-100 images are 32 pixels, ImageNet's 224, GAISSA's 128 (corpus/gaissa.py).
- LibriSpeech utterances average 12.3 s, one frame every 10 ms.
- Adadelta keeps two state tensors per parameter; it is priced as Adam.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidData
from predictor.features.work import OpWork, Program
from predictor.hardware.spec import DeviceSpec
from predictor.models.power_profile import JobProfile, job_profile
from predictor.types import Mode, Optimizer, Precision, Runtime

if TYPE_CHECKING:
    import polars as pl

    from predictor.features.graph import Graph
    from predictor.models.op_time import OpTimeModel

# The same host time per eager launch as predictor.compose.time.
LAUNCH_S = 5e-6


@dataclass(frozen=True, slots=True)
class Workload:
    """A published architecture with the sizes of one data set."""

    architecture: str
    options: Mapping[str, object]


_GAISSA: Mapping[str, object] = {"image": 128, "classes": 2}
WORKLOADS: Mapping[tuple[str, str], Workload] = {
    ("resnet50", "imagenet"): Workload("resnet50", {}),
    ("shufflenetv2", "cifar100"): Workload("shufflenet_v2", {"image": 32, "classes": 100}),
    ("deepspeech2", "librispeech"): Workload("deepspeech2", {"frames": 1230}),
    ("bert_base_uncased", "squad"): Workload("bert_base_spans", {"sequence": 384}),
    ("bert_base_uncased", "sentiment140"): Workload("bert_base", {"sequence": 64}),
    ("resnet50", ""): Workload("resnet50", _GAISSA),
    ("vgg16", ""): Workload("vgg16", _GAISSA),
    ("xception", ""): Workload("xception", _GAISSA),
    ("nasnet_mobile", ""): Workload("nasnet_mobile", _GAISSA),
    ("mobilenet_v2", ""): Workload("mobilenet_v2", {**_GAISSA, "width": 0.5}),
}
"""(subject, data set) of the corpus -> workload; GAISSA has one data set and names none."""
OPTIMIZERS: Mapping[str, Optimizer] = {
    "adadelta": Optimizer.ADAM,
    "adam": Optimizer.ADAM,
    "adamw": Optimizer.ADAMW,
    "sgd": Optimizer.MOMENTUM,
}


@dataclass(frozen=True, slots=True)
class PowerSample:
    """One reading.

    Attributes:
        profile: the job on the device, without a cap.
        device, limit_w: where it ran, and the power limit in force.
        power_w: average board power.
        time_s: epoch time (0 where not published); comparable within one `job`.
        job: everything but the limit, so that samples of one sweep share it.
        device_group, model_group: what evaluation holds out.
    """

    profile: JobProfile
    device: DeviceSpec
    limit_w: float
    power_w: float
    time_s: float
    job: str
    device_group: str
    model_group: str


def job_graph(subject: str, dataset: str, batch: int) -> Graph:
    """The network of a row as a graph. Raises InvalidData for a workload that is not in WORKLOADS."""
    from predictor.features.architectures import architecture
    from predictor.features.reader import read_graph

    workload = WORKLOADS.get((subject, dataset))
    if workload is None:
        known = ", ".join(sorted({name for name, _ in WORKLOADS}))
        raise InvalidData(
            f"power rows: no architecture for {subject} on {dataset or 'its data set'}; known: {known}"
        )
    return read_graph(architecture(workload.architecture, batch=batch, **workload.options))


def job_program(subject: str, configuration: Mapping[str, Any]) -> Program:
    """The iteration that a row trained."""
    from predictor.features.program import build_program

    return build_program(
        job_graph(subject, str(configuration.get("dataset", "")), int(configuration["batch"])),
        mode=Mode.TRAIN,
        precision=Precision.parse(configuration["precision"]),
        optimizer=OPTIMIZERS[configuration["optimizer"]],
        runtime=Runtime.EAGER,
    )


def op_times(program: Program, device: DeviceSpec, model: OpTimeModel) -> NDArray[np.float64]:
    """(ops,) predicted kernel times, equal works priced once."""
    position: dict[OpWork, int] = {}
    index = [position.setdefault(op.work, len(position)) for op in program.ops]
    times: NDArray[np.float64] = model.costs(tuple(position), device).time_s[index]
    return times


def power_samples(
    rows: pl.DataFrame, model: OpTimeModel, find: Callable[[str], DeviceSpec]
) -> tuple[PowerSample, ...]:
    """All `average_power` rows of the measurement schema as samples, repeats of one configuration averaged.

    Args:
        rows: Zeus and GAISSA rows.
        model: prices the programs.
        find: catalogue look-up by id.
    """
    programs: dict[tuple[str, str], Program] = {}
    profiles: dict[tuple[str, str, str], JobProfile] = {}
    readings: dict[tuple[str, ...], list[float]] = {}
    times: dict[tuple[str, ...], list[float]] = {}
    columns = ("subject", "device", "device_group", "model_group", "quantity", "configuration", "value")
    for subject, device_id, chip, family, quantity, text, value in (
        rows.select(columns).sort(columns).iter_rows()
    ):
        facts = json.loads(text)
        limit = str(float(facts.pop("power_limit_w")))
        facts.pop("run", None)
        facts.pop("images", None)
        job = json.dumps(facts, sort_keys=True)
        key = (subject, device_id, chip, family, job, limit)
        if quantity == "epoch_time":
            times.setdefault(key, []).append(value)
        if quantity != "average_power":
            continue
        readings.setdefault(key, []).append(value)
        if (subject, device_id, job) not in profiles:
            if (subject, job) not in programs:
                programs[subject, job] = job_program(subject, facts)
            program, device = programs[subject, job], find(device_id)
            profiles[subject, device_id, job] = job_profile(
                program, op_times(program, device, model), device, LAUNCH_S
            )
    return tuple(
        PowerSample(
            profile=profiles[subject, device_id, job],
            device=find(device_id),
            limit_w=float(limit),
            power_w=float(np.mean(values)),
            time_s=float(np.mean(times.get((subject, device_id, chip, family, job, limit), [0.0]))),
            job=f"{device_id} {subject} {job}",
            device_group=chip,
            model_group=family,
        )
        for (subject, device_id, chip, family, job, limit), values in sorted(readings.items())
    )
