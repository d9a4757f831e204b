"""Measured power as samples: what ran, as a program priced by our own op times, and the watts that were read.

The publishers name a network, a data set and a batch; the sizes that they leave open are fixed here, once:

- SQuAD fine-tuning runs on 384 tokens (the usual window), Sentiment140 on 64: at that length the published
epoch times
  of the V100 give the same FLOP/s as SQuAD's.
- CIFAR-100 images are 32 pixels, ImageNet's 224, GAISSA's 128 (corpus/gaissa.py).
- LibriSpeech utterances average 12.3 s, one frame every 10 ms.
- Adadelta keeps two state tensors per parameter; it is priced as Adam.
- GAISSA trains Keras' backbones under a mean over positions and one output (corpus/gaissa.py); Keras' Adam is
  one kernel a variable.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidData
from predictor.features.programs.work import OpInstance, OpWork, Program
from predictor.features.programs.work import Phase as WorkPhase
from predictor.hardware.spec import DeviceSpec
from predictor.models.corpus.gaissa import TRAINING_STEPS, VALIDATION_STEPS
from predictor.models.power.profile import JobProfile, Phase, job_profile, mixed, timed
from predictor.types import Mode, Optimizer, Precision, Runtime

if TYPE_CHECKING:
    import polars as pl

    from predictor.features.graph import Graph
    from predictor.models.ops.op_time import OpTimeModel

# The same host time per eager launch as predictor.compose.time.
LAUNCH_S = 5e-6


@dataclass(frozen=True, slots=True)
class Workload:
    """A published architecture with the sizes of one data set."""

    architecture: str
    options: Mapping[str, object]


_GAISSA: Mapping[str, object] = {"image": 128, "classes": 1}
WORKLOADS: Mapping[tuple[str, str], Workload] = {
    ("resnet50", "imagenet"): Workload("resnet50", {}),
    ("shufflenetv2", "cifar100"): Workload("shufflenet_v2", {"image": 32, "classes": 100}),
    ("deepspeech2", "librispeech"): Workload("deepspeech2", {"frames": 1230}),
    ("bert_base_uncased", "squad"): Workload("bert_base_spans", {"sequence": 384}),
    ("bert_base_uncased", "sentiment140"): Workload("bert_base", {"sequence": 64}),
    ("resnet50", ""): Workload("keras_resnet50", _GAISSA),
    ("vgg16", ""): Workload("keras_vgg16", _GAISSA),
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
        phases: the kinds of steps that the reading averages over; () where all are alike.
        iteration_s, busy_share: duration of a mean step and share of it with a kernel, where metered, else 0.
    """

    profile: JobProfile
    device: DeviceSpec
    limit_w: float
    power_w: float
    time_s: float
    job: str
    device_group: str
    model_group: str
    phases: tuple[Phase, ...] = ()
    iteration_s: float = 0.0
    busy_share: float = 0.0


def as_measured(sample: PowerSample) -> PowerSample:
    """The sample with its metered durations in place of predicted ones: what the power model learns from."""
    if not (sample.iteration_s > 0 and sample.busy_share > 0):
        return sample
    known = timed(sample.profile, sample.iteration_s, sample.busy_share * sample.iteration_s)
    return replace(sample, profile=known)


def job_graph(subject: str, dataset: str, batch: int) -> Graph:
    """The network of a row as a graph. Raises InvalidData for a workload that is not in WORKLOADS."""
    from predictor.features.architectures import architecture
    from predictor.features.reading.reader import read_graph

    workload = WORKLOADS.get((subject, dataset))
    if workload is None:
        known = ", ".join(sorted({name for name, _ in WORKLOADS}))
        raise InvalidData(
            f"power rows: no architecture for {subject} on {dataset or 'its data set'}; known: {known}"
        )
    return read_graph(architecture(workload.architecture, batch=batch, **workload.options))


def job_program(subject: str, configuration: Mapping[str, Any], mode: Mode = Mode.TRAIN) -> Program:
    """A step of the job that a row measured: of training, or of its validation."""
    from predictor.features.programs.program import build_program

    train, dataset = mode is Mode.TRAIN, str(configuration.get("dataset", ""))
    program = build_program(
        job_graph(subject, dataset, int(configuration["batch"])),
        mode=mode,
        precision=Precision.parse(configuration["precision"]),
        optimizer=OPTIMIZERS[configuration["optimizer"]] if train else Optimizer.NONE,
        runtime=Runtime.EAGER,
    )
    return program if dataset or not train else _with_one_pass(program)


def _with_one_pass(program: Program) -> Program:
    """`program` whose optimizer updates each variable in one kernel instead of torch's many passes."""
    from predictor.features.dtype import DType
    from predictor.features.graph import Value
    from predictor.features.ops.optimizer import optimizer_work

    values = (Value("weights", (program.parameter_count,), DType.FLOAT32),)
    (work,) = optimizer_work(values, Optimizer.ADAM, precision=Precision.FP32, runtime=Runtime.COMPILED)
    step = OpInstance(replace(work, launch_count=len(program.gradients)), "optimizer", "adam")
    kept = (op for op in program.ops if op.work.phase is not WorkPhase.OPTIMIZER)
    return replace(program, ops=(*kept, step))


_STEPS = TRAINING_STEPS + VALIDATION_STEPS
STEP_SHARES: Mapping[Mode, float] = {
    Mode.TRAIN: TRAINING_STEPS / _STEPS,
    Mode.INFER: VALIDATION_STEPS / _STEPS,
}
"""Shares of steps of rows without a data set (GAISSA), whose runs count validation."""


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
    programs: dict[tuple[str, str, Mode], Program] = {}
    phases: dict[tuple[str, str, str], tuple[Phase, ...]] = {}
    readings: dict[tuple[str, ...], dict[str, list[float]]] = {}
    columns = ("subject", "device", "device_group", "model_group", "quantity", "configuration", "value")
    for subject, device_id, chip, family, quantity, text, value in (
        rows.select(columns).sort(columns).iter_rows()
    ):
        facts = json.loads(text)
        limit = str(float(facts.pop("power_limit_w")))
        facts.pop("run", None)
        images = float(facts.pop("images", 0.0))
        job = json.dumps(facts, sort_keys=True)
        entry = readings.setdefault((subject, device_id, chip, family, job, limit), {})
        # Joules of a whole run follow its early stopping; those of one step do not.
        scale = float(facts["batch"]) / images if quantity == "energy" else 1.0
        entry.setdefault(quantity, []).append(scale * value)
        if (subject, device_id, job) in phases:
            continue
        device, found = find(device_id), []
        for mode, share in STEP_SHARES.items() if images else ((Mode.TRAIN, 1.0),):
            if (subject, job, mode) not in programs:
                programs[subject, job, mode] = job_program(subject, facts, mode)
            program = programs[subject, job, mode]
            profile = job_profile(program, op_times(program, device, model), device, LAUNCH_S)
            found.append(Phase(share, profile))
        phases[subject, device_id, job] = tuple(found)
    return tuple(
        _sample(key, entry, phases[key[0], key[1], key[4]], find(key[1]))
        for key, entry in sorted(readings.items())
        if "average_power" in entry
    )


def _sample(
    key: tuple[str, ...], entry: Mapping[str, list[float]], phases: tuple[Phase, ...], device: DeviceSpec
) -> PowerSample:
    subject, device_id, chip, family, job, limit = key
    mean = {quantity: float(np.mean(values)) for quantity, values in entry.items()}
    return PowerSample(
        profile=mixed(phases),
        device=device,
        limit_w=float(limit),
        power_w=mean["average_power"],
        time_s=mean.get("epoch_time", 0.0),
        job=f"{device_id} {subject} {job}",
        device_group=chip,
        model_group=family,
        phases=phases if len(phases) > 1 else (),
        iteration_s=mean.get("energy", 0.0) / mean["average_power"],
        busy_share=mean.get("device_busy_share", 0.0),
    )
