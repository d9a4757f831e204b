"""Step time of a training job by the media that its weights cross: the analytic model of Alibaba's PAI study.

    T_d = S_d / (B_pcie e_pcie)
    T_c = F / (P_gpu e_flop) + S_mem / (B_mem e_mem)
    T_w = sum over the media of the architecture of S_w / (B_m e_m)

Wang et al. 2019, "Characterizing deep learning training workloads on Alibaba-PAI", IISWC, arXiv:1910.05930.
Parameter bytes, bytes of weights with optimizer state, and traffic bytes are three different numbers; traffic
counts bytes sent and received.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Any

from predictor.checks import positive_number, whole_number
from predictor.errors import InvalidRequest
from predictor.features.programs.work import Program
from predictor.types import TrainingArchitecture

ETHERNET, PCIE, NVLINK = "ethernet", "pcie", "nvlink"

MEDIA: Mapping[TrainingArchitecture, tuple[str, ...]] = {
    TrainingArchitecture.ONE_GPU: (),
    TrainingArchitecture.ONE_SERVER: (PCIE,),
    TrainingArchitecture.PS_WORKER: (ETHERNET, PCIE),
    TrainingArchitecture.ALLREDUCE_LOCAL: (NVLINK,),
    TrainingArchitecture.ALLREDUCE_CLUSTER: (ETHERNET, NVLINK),
    # Dense weights are all-reduced and touched embedding rows exchanged inside the NVLink servers.
    TrainingArchitecture.PEARL: (NVLINK,),
}
"""Media that the weights of a step cross, one after the other."""

LARGEST_SERVER = 8
"""Devices of one NVLink server, the most that AllReduce-Local can use."""

RESOURCES = ("flop", "memory", PCIE, NVLINK, ETHERNET)


@dataclass(frozen=True, slots=True)
class System:
    """Peak rates of a cluster, and the share of each that a job reaches (70 % in the study).

    Attributes:
        flops_per_s, memory_bytes_per_s: of one device. pcie, nvlink, ethernet: bytes/s of one link.
        efficiency: share reached, by resource (see RESOURCES).
        memory_bytes: capacity of one device, None where it does not matter.
    """

    flops_per_s: float
    memory_bytes_per_s: float
    pcie_bytes_per_s: float
    nvlink_bytes_per_s: float
    ethernet_bytes_per_s: float
    efficiency: Mapping[str, float]
    memory_bytes: float | None = None

    def __post_init__(self) -> None:
        for name in _RATES.values():
            positive_number(getattr(self, name), f"system: {name}", name, "a rate above 0")
        unknown = set(self.efficiency) ^ set(RESOURCES)
        if unknown or not all(0 < share <= 1 for share in self.efficiency.values()):
            raise InvalidRequest(
                f"system: efficiency is {dict(self.efficiency)!r}; expected a share in (0, 1] for each of "
                f"{', '.join(RESOURCES)}",
                field="efficiency",
            )

    def rate(self, resource: str) -> float:
        """Bytes or FLOPs a second that a job reaches."""
        peak: float = getattr(self, _RATES[resource])
        return peak * self.efficiency[resource]


_RATES = {
    "flop": "flops_per_s",
    "memory": "memory_bytes_per_s",
    PCIE: "pcie_bytes_per_s",
    NVLINK: "nvlink_bytes_per_s",
    ETHERNET: "ethernet_bytes_per_s",
}
_SEVENTY_PERCENT = dict.fromkeys(RESOURCES, 0.7)

SYSTEMS: Mapping[str, System] = {
    # Settings of the study's comparison of collectives.
    "pai": System(11e12, 1e12, 10e9, 50e9, 3.125e9, _SEVENTY_PERCENT),
    # Its testbed: 64 servers of eight V100.
    "v100": System(15e12, 0.9e12, 10e9, 50e9, 3.125e9, _SEVENTY_PERCENT, 32e9),
}


@dataclass(frozen=True, slots=True)
class Workload:
    """What one replica of a job asks for per step.

    Attributes:
        flops: of compute-bound operators. memory_bytes: moved by memory-bound ones. input_bytes: batch, from
            the host.
        traffic_bytes: weights and gradients, sent and received.
        dense_bytes, embedding_bytes: weights with optimizer state.
        replicas: devices of the job.
    """

    name: str
    architecture: TrainingArchitecture
    flops: float
    memory_bytes: float
    input_bytes: float
    traffic_bytes: float
    dense_bytes: float = 0.0
    embedding_bytes: float = 0.0
    batch: int = 1
    replicas: int = 1

    def __post_init__(self) -> None:
        architecture = TrainingArchitecture.parse(self.architecture)
        object.__setattr__(self, "architecture", architecture)
        whole_number(self.replicas, f"workload {self.name}: replicas", "replicas", "at least 1")


def _case(
    name: str,
    architecture: TrainingArchitecture,
    batch: int,
    flops: float,
    memory: float,
    copied: float,
    traffic: float,
    dense: float,
    embedding: float,
) -> Workload:
    return Workload(name, architecture, flops, memory, copied, traffic, dense, embedding, batch)


CASES: Mapping[str, Workload] = {
    case.name: case
    for case in (
        _case(
            "multi_interests", TrainingArchitecture.PS_WORKER,
            2048, 105.8e9, 100.4e9, 261e6, 122e6, 1.19e6, 239.45e9,
        ),
        _case(
            "resnet50", TrainingArchitecture.ALLREDUCE_LOCAL, 64, 1.56e12, 31.9e9, 38e6, 357e6, 204e6, 0.0
        ),
        _case(
            "nmt", TrainingArchitecture.ALLREDUCE_LOCAL, 6144, 2.5e12, 101.6e9, 22e3, 1.33e9, 706e6, 819e6
        ),
        _case(
            "bert", TrainingArchitecture.ALLREDUCE_LOCAL, 12, 2.1e12, 107.3e9, 46e3, 1.5e9, 1e9, 284e6
        ),
        _case("speech", TrainingArchitecture.ONE_GPU, 32, 7.9e12, 20.4e9, 804e6, 728e6, 416e6, 0.0),
        _case("gcn", TrainingArchitecture.PEARL, 512, 330.7e9, 25.79e9, 1.2e6, 3e9, 207e6, 54e9),
    )
}  # fmt: skip
"""The study's six jobs: demands of one step."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step with its parts; `weights_s` by medium."""

    input_s: float
    flop_s: float
    memory_s: float
    weights_s: Mapping[str, float]
    total_s: float

    @property
    def communication_s(self) -> float:
        """Weights over all media."""
        return fsum(self.weights_s.values())

    @property
    def shares(self) -> Mapping[str, float]:
        """Parts over their sum: input, compute-bound, memory-bound, weights."""
        parts = {
            "input": self.input_s,
            "flop": self.flop_s,
            "memory": self.memory_s,
            "weights": self.communication_s,
        }
        whole = fsum(parts.values())
        return {name: part / whole for name, part in parts.items()}

    @property
    def bottleneck(self) -> str:
        """The largest part."""
        return max(self.shares, key=lambda name: self.shares[name])


def step_time(
    workload: Workload, system: System, *, overlap: float = 0.0, replicas_per_server: int = 1
) -> StepTime:
    """Time of one step.

    Args:
        overlap: 0 adds input, compute and weights up; 1 takes the largest of the three; between, a mixture.
        replicas_per_server: replicas that share a server's PCIe for their input.

    Raises InvalidRequest for an overlap outside [0, 1].
    """
    if not 0 <= overlap <= 1:
        raise InvalidRequest(f"overlap is {overlap!r}; expected a share from 0 to 1", field="overlap")
    input_s = replicas_per_server * workload.input_bytes / system.rate(PCIE)
    flop_s = workload.flops / system.rate("flop")
    memory_s = workload.memory_bytes / system.rate("memory")
    weights_s = {
        medium: workload.traffic_bytes / system.rate(medium) for medium in MEDIA[workload.architecture]
    }
    parts = input_s, flop_s + memory_s, fsum(weights_s.values())
    total_s = (1 - overlap) * fsum(parts) + overlap * max(parts)
    return StepTime(input_s, flop_s, memory_s, weights_s, total_s)


@dataclass(frozen=True, slots=True)
class Port:
    """A job before and after it moved to another architecture.

    Attributes:
        replica_speedup: old over new step time. throughput_speedup: the same with the replicas of each.
        fits: whether weights and optimizer state fit the device; None where its capacity is unknown.
    """

    before: StepTime
    after: StepTime
    replicas: int
    replica_speedup: float
    throughput_speedup: float
    fits: bool | None


def port(
    workload: Workload,
    architecture: TrainingArchitecture | str,
    system: System,
    *,
    overlap: float = 0.0,
    replicas_per_server: int = 1,
) -> Port:
    """The same workload under another architecture.

    AllReduce-Local keeps at most LARGEST_SERVER replicas, and its replicas share the server's PCIe; PEARL
    spreads the embeddings over its replicas.

    Args:
        replicas_per_server: of the old architecture.
    """
    target = TrainingArchitecture.parse(architecture)
    replicas = workload.replicas
    local = target in (TrainingArchitecture.ALLREDUCE_LOCAL, TrainingArchitecture.ONE_SERVER)
    if target is TrainingArchitecture.ONE_GPU:
        replicas = 1
    elif local:
        replicas = min(replicas, LARGEST_SERVER)
    sharing = replicas_per_server
    if target not in (TrainingArchitecture.ONE_GPU, TrainingArchitecture.PS_WORKER):
        sharing = min(replicas, LARGEST_SERVER)
    moved = replace(workload, architecture=target, replicas=replicas)
    before = step_time(workload, system, overlap=overlap, replicas_per_server=replicas_per_server)
    after = step_time(moved, system, overlap=overlap, replicas_per_server=sharing)
    speedup = before.total_s / after.total_s
    return Port(
        before, after, replicas, speedup, speedup * replicas / workload.replicas, _fits(moved, system)
    )


def _fits(workload: Workload, system: System) -> bool | None:
    if system.memory_bytes is None:
        return None
    held = workload.dense_bytes
    if workload.architecture is TrainingArchitecture.PEARL:
        held += workload.embedding_bytes / workload.replicas
    elif workload.architecture is not TrainingArchitecture.PS_WORKER:
        held += workload.embedding_bytes
    return held <= system.memory_bytes


def sweep(
    workload: Workload, system: System, field: str, values: Sequence[float], *, overlap: float = 0.0
) -> list[float]:
    """Speed-up over `system` when one of its rates takes each of `values`.

    Raises InvalidRequest for a field that is no rate.
    """
    if field not in _RATES.values():
        raise InvalidRequest(
            f"sweep: no rate {field!r}; expected one of {', '.join(_RATES.values())}", field="sweep"
        )
    base_s = step_time(workload, system, overlap=overlap).total_s
    changed = (_with_rate(system, field, value) for value in values)
    return [base_s / step_time(workload, other, overlap=overlap).total_s for other in changed]


def _with_rate(system: System, field: str, value: float) -> System:
    rates: dict[str, Any] = {field: value}
    return replace(system, **rates)


def sensitivities(workload: Workload, system: System, *, factor: float = 2.0) -> dict[str, float]:
    """Speed-up by a resource that is `factor` times as fast, the most sensitive first."""
    gains = {
        resource: sweep(workload, system, name, [factor * getattr(system, name)])[0]
        for resource, name in _RATES.items()
    }
    return dict(sorted(gains.items(), key=lambda item: -item[1]))


def fleet_shares(workloads: Sequence[Workload], system: System, *, by_replica: bool) -> dict[str, float]:
    """Average shares of step time over jobs, each job once or once per replica."""
    if not workloads:
        raise InvalidRequest("fleet: no jobs; expected at least one", field="workloads")
    weights = [job.replicas if by_replica else 1 for job in workloads]
    shares = [step_time(job, system).shares for job in workloads]
    return {
        name: fsum(weight * share[name] for weight, share in zip(weights, shares, strict=True))
        / fsum(weights)
        for name in shares[0]
    }


def ring_traffic_bytes(parameter_bytes: float, ranks: int) -> float:
    """Bytes that one rank sends and receives in a ring all-reduce: 4 (n - 1) / n of the parameters."""
    return 4 * (ranks - 1) / ranks * parameter_bytes


def workload_of(
    program: Program,
    name: str,
    architecture: TrainingArchitecture | str,
    *,
    replicas: int = LARGEST_SERVER,
) -> Workload:
    """The demands of one training step of a graph.

    Products and convolutions are compute-bound, everything else memory-bound; traffic is that of a ring over
    the replicas, both ways.
    """
    parameter_bytes = program.memory.parameter_bytes
    return Workload(
        name=name,
        architecture=TrainingArchitecture.parse(architecture),
        flops=float(sum(op.work.matrix_flops for op in program.ops)),
        memory_bytes=float(sum(op.work.moved_bytes for op in program.ops if not op.work.matrix_flops)),
        input_bytes=float(program.memory.input_bytes),
        traffic_bytes=ring_traffic_bytes(parameter_bytes, replicas),
        dense_bytes=float(parameter_bytes + program.memory.optimizer_state_bytes),
        batch=program.batch,
        replicas=replicas,
    )
