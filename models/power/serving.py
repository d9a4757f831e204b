"""Serving a decoder in batches: seconds of a step, watts of a device, joules of a token.

A step makes one token of each of `batch` sequences; requests come and go, so a share of the prompts is read
beside it. What a step asks of a device: weights and caches over the bandwidth, FLOPs over the peak,
exchanges over the links, launches. A base adds the terms with fitted weights, one set for each measured chip
and one for all others; base watts are a mixture of what each term draws while it lasts, bent under the limit.
Trees and a memory of jobs alike correct the step and the watts; joules are watts times seconds.

Steps, not kernels, are what the leaderboard measures: the server's own work (scheduling, sampling, launches
that no graph holds) is inside, and is the larger part of small models' steps on fast devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidBundle, InvalidRequest
from predictor.hardware.spec import DeviceSpec
from predictor.models.booster import load_booster
from predictor.models.bundle import Bundle, TrainedModel
from predictor.models.device_identity import is_known
from predictor.models.power.board_power import idle_power_w
from predictor.models.power.llm_shape import LlmShape
from predictor.models.power.residuals import JobMemory
from predictor.types import Interval

FloatArray = NDArray[np.float64]

MODEL_NAME = "serving"
TARGETS = ("step", "power")
POWER_TARGET = "over base of FLOPs"
"""What the power model's corrections multiply; a bundle names it, since older ones meant another thing."""
TASKS = ("chat", "reasoning", "code", "image", "video")
"""Kinds of requests that the rows hold; servers treat images and long reasoning differently."""

_USABLE = 0.9
_TINY_S = 1e-9
LEAST_FRACTION = 0.02
"""No job draws less above idle than this share of what the limit leaves."""
# An exchange of a few KB between devices of one node takes about this long; a kernel starts in two.
_EXCHANGE_S, _START_S = 8e-6, 2e-6
# Norms, products, rotation, cache, attention and activation; what routed experts add (scores, choice,
# sorting, the sum); casts before the four products of a layer in FP8.
_KERNELS_PER_LAYER, _KERNELS_PER_ROUTED, _KERNELS_NARROW, _KERNELS_BESIDE = 10, 8, 4, 20
TERMS = (
    "weights", "cache", "compute", "prompts", "exchange", "launch", "step", "sequences", "scaled layers",
    "images", "lone reasoning", "lone images",
)  # fmt: skip
# Seconds that a coefficient of 1 stands for, of the terms that no device number scales.
_STEP_S, _SEQUENCE_S, _SCALED_LAYER_S, _IMAGE_S = 1e-3, 1e-5, 1e-5, 1e-2
_COMPUTE, _PROMPTS, _STEP = (TERMS.index(name) for name in ("compute", "prompts", "step"))
# Weights and cache among `power_terms`.
_STREAMED = slice(1, 3)
# As many requests with images wait for no host, whatever the decoder (B200: 16 took 30 ms a step more).
_FEW_REQUESTS = 8
# How sharply watts bend under the limit.
_BEND = 6.0
# What a term that a step has not counts as, where shares are compared by their logs.
_LEAST_SHARE = 1e-5


@dataclass(frozen=True, slots=True)
class ServingJob:
    """A decoder served on `devices` equal devices of one node.

    Attributes:
        batch: most sequences at once, over all replicas. prompt_tokens, output_tokens: means.
        replicas: data-parallel copies; of attention alone where experts are spread over all devices.
        expert_parallel: ranks that hold whole experts instead of slices of all.
        weight_bits: 16, or 8 where weights and products are FP8. task: one of TASKS.
    """

    shape: LlmShape
    devices: int
    batch: int
    prompt_tokens: float
    output_tokens: float
    replicas: int = 1
    expert_parallel: int = 1
    weight_bits: int = 16
    task: str = "chat"

    def __post_init__(self) -> None:
        """Raises InvalidRequest for numbers that no job has."""
        for name in ("devices", "batch", "replicas", "expert_parallel"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)!r}; expected at least 1", field=name)
        if self.devices % self.replicas:
            raise InvalidRequest(
                f"{self.devices} devices do not divide over {self.replicas} replicas", field="replicas"
            )
        if not (self.prompt_tokens > 0 and self.output_tokens > 0):
            raise InvalidRequest("prompt and output tokens: expected numbers above 0", field="prompt_tokens")
        if self.weight_bits not in (8, 16):
            raise InvalidRequest(f"weight_bits is {self.weight_bits}; expected 8 or 16", field="weight_bits")
        if self.task not in TASKS:
            raise InvalidRequest(f"task {self.task!r}; expected one of {', '.join(TASKS)}", field="task")

    @property
    def ranks(self) -> int:
        """Devices that share one replica's attention and dense layers."""
        return self.devices // self.replicas

    @property
    def expert_ranks(self) -> int:
        """Devices that share the experts: all of them where experts are spread, replicas included."""
        return self.devices if self.expert_parallel > 1 else self.ranks


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step asks of each device of a replica, in seconds at its rated rates.

    Attributes:
        balance: experts that the busiest rank reads, over the mean of ranks; the others wait for it.
        scaled_layers: routed layers whose FP8 weights have a scale per block; each takes a fixed time more.
        images: requests with images or videos that a step admits; each is prepared by the host.
        lone: the task of a server of one device. Its node runs others beside it, and its host keeps the
            device waiting with long reasonings and with images of any size (B200: 30 ms a step, whatever the
            decoder). Images that are resized to one size are no such task, nor are those of few requests.
    """

    batch: float
    weights_s: float
    cache_s: float
    compute_s: float
    prompts_s: float
    exchange_s: float
    launch_s: float
    balance: float = 1.0
    scaled_layers: int = 0
    images: float = 0.0
    lone: str = ""

    @property
    def terms(self) -> FloatArray:
        """(12,) in the order of TERMS."""
        device = (
            self.weights_s,
            self.cache_s,
            self.compute_s,
            self.prompts_s,
            self.exchange_s,
            self.launch_s,
        )
        beside = (_SEQUENCE_S * self.batch, _SCALED_LAYER_S * self.scaled_layers, _IMAGE_S * self.images)
        hosts = [_STEP_S * (self.lone == task) for task in ("reasoning", "image")]
        return np.array([*device, _STEP_S, *beside, *hosts])

    @property
    def floor_s(self) -> float:
        """No step is faster."""
        return max(self.weights_s + self.cache_s, self.compute_s) + self.prompts_s + self.exchange_s


def step_work(job: ServingJob, device: DeviceSpec) -> StepWork:
    """The work of a step. Raises InvalidRequest when the weights alone do not fit."""
    shape, ranks = job.shape, job.ranks
    width = job.weight_bits / 8
    bandwidth = device.memory_bytes_per_s
    peak16 = device.matrix_flops_per_s.get("bf16", device.vector_flops_per_s)
    peak = device.matrix_flops_per_s.get("fp8", peak16) if job.weight_bits == 8 else peak16
    experts = shape.expert_layers * shape.experts * shape.expert_parameters
    held = (width * shape.fixed_parameters + 4 * shape.head_parameters) / ranks
    held += width * experts / job.expert_ranks
    room = (_USABLE * device.memory_bytes - held) * ranks
    if room <= 0:
        raise InvalidRequest(
            f"{held / 1e9:.0f} GB of weights a device do not fit into {device.id}; use more devices",
            field="devices",
        )
    # Caches grow with their answers and servers admit on what is free now, so the mean length decides.
    context = job.prompt_tokens + job.output_tokens / 2
    batch = min(job.batch / job.replicas, max(1.0, room / max(shape.cache_bytes(context), 1.0)))
    touched = shape.touched_experts(batch * job.expert_ranks / ranks)
    routed = shape.expert_layers * touched * shape.expert_parameters * ranks / job.expert_ranks
    read = width * (shape.fixed_parameters + routed) + 2 * shape.head_parameters
    scores = 4.0 * batch * shape.heads * shape.head_dim * shape.attention_layers * context
    body = shape.active_parameters - shape.head_parameters
    # Ranks that share experts step together: a prompt that one replica reads holds up all of them.
    waiting = job.replicas if job.expert_ranks > ranks else 1
    prompts = 2.0 * waiting * batch * job.prompt_tokens / job.output_tokens * body
    exchange, partners = 0.0, max(ranks, job.expert_ranks)
    if partners > 1:
        link = device.link_bytes_per_s or 32e9
        moved = 4.0 * batch * shape.hidden * (partners - 1) / partners
        exchange = 2 * shape.layers * (_EXCHANGE_S + moved / link)
    return StepWork(
        batch=batch,
        weights_s=read / ranks / bandwidth,
        cache_s=batch * shape.cache_bytes(context) / ranks / bandwidth,
        compute_s=2.0 * shape.active_parameters * batch / ranks / peak + scores / ranks / peak16,
        prompts_s=prompts / ranks / peak,
        exchange_s=exchange,
        launch_s=_kernel_count(job) * _START_S,
        balance=_balance(shape, touched, job.expert_ranks) if job.expert_parallel > 1 else 1.0,
        scaled_layers=shape.expert_layers if shape.block_scaled and job.weight_bits == 8 else 0,
        images=batch / job.output_tokens if job.task in ("image", "video") else 0.0,
        lone=_lone(job),
    )


def _lone(job: ServingJob) -> str:
    """The task that keeps the host of a server of one device behind; empty where none does."""
    light = job.task == "image" and (job.shape.image_tokens > 0 or job.batch <= _FEW_REQUESTS)
    return "" if job.devices > 1 or light else job.task


def _kernel_count(job: ServingJob) -> int:
    """Kernels that a step launches, about: which experts and types it has matters more than each number."""
    shape = job.shape
    per_layer = _KERNELS_PER_LAYER + (_KERNELS_NARROW if job.weight_bits == 8 else 0)
    return per_layer * shape.layers + _KERNELS_PER_ROUTED * shape.expert_layers + _KERNELS_BESIDE


def _balance(shape: LlmShape, touched: float, ranks: int) -> float:
    """Expected largest over mean number of touched experts of a rank, evenly routed tokens.

    The number of one rank is nearly binomial; the largest of r lies sqrt(2 ln r) deviations up.
    """
    if not shape.experts or ranks < 2:
        return 1.0
    share, own = touched / shape.experts, shape.experts / ranks
    deviation = sqrt(own * share * (1.0 - share))
    return min(float(ranks), 1.0 / share, 1.0 + sqrt(2.0 * log(ranks)) * deviation / (own * share))


def power_terms(work: StepWork, base_s: float) -> FloatArray:
    """(11,) what watts are a mixture of: waiting, and the shares of the base step by what it asks for.

    A FLOP takes the same joules in a prompt as in a step; apart, runs with images had told that prompts draw
    nothing (H100).
    """
    terms = work.terms.copy()
    terms[_COMPUTE] += terms[_PROMPTS]
    return np.append(1.0, np.delete(terms, (_PROMPTS, _STEP)) / base_s)


def features(job: ServingJob, work: StepWork, base_s: float, base_power: float, chip: float) -> FloatArray:
    """(38,) facts of a job on a device: shares of the base step, sizes, kinds.

    `base_power`: base watts over the limit.
    """
    parts = (work.weights_s, work.cache_s, work.compute_s, work.prompts_s, work.exchange_s)
    shape = job.shape
    layer_s = work.weights_s / shape.layers / _START_S
    return np.array(
        [
            *(log(max(part, _TINY_S) / base_s) for part in parts),
            *(log(max(_LEAST_SHARE, part / base_s)) for part in work.terms[_STEP + 1 :]),
            log(base_s),
            log(base_s / work.launch_s),
            log(work.batch),
            float(job.weight_bits == 8),
            float(work.scaled_layers > 0),
            float(shape.experts > 0),
            float(shape.state_numbers > 0),
            log(job.ranks),
            log(job.replicas),
            log(job.expert_parallel),
            log(job.output_tokens),
            log(max(layer_s, _TINY_S)),
            log(shape.active_parameters),
            log(shape.total_parameters / job.ranks),
            log(work.balance),
            log(base_s / shape.layers),
            log(work.floor_s / base_s),
            log(base_power),
            log(work.batch / job.output_tokens),
            log(max(1, shape.experts_per_token)),
            log(shape.hidden),
            log(shape.layers),
            chip,
            *(float(job.task == task) for task in TASKS),
        ]
    )


@dataclass(frozen=True, slots=True)
class ServingAnswer:
    """What serving costs; energy of the boards of all devices (scope device).

    Attributes:
        step_s: one token of every sequence. tokens_per_s: output tokens of the whole job.
        power_w: mean per device. energy_per_token_j: per output token, its share of prompts included.
        energy_per_request_j: one answer. prefill_j, decode_j: its parts, by the time each takes.
        batch: sequences at once, over all replicas, that fit. known_device: whether its chip was measured.
    """

    step_s: Interval
    tokens_per_s: Interval
    power_w: Interval
    energy_per_token_j: Interval
    energy_per_request_j: Interval
    prefill_j: float
    decode_j: float
    batch: float
    known_device: bool


@dataclass(frozen=True, slots=True)
class _Chip:
    """A measured chip: its numbers (1, n), its code among the features, weights of its two bases."""

    numbers: FloatArray
    code: float
    base: FloatArray
    power: FloatArray

    def base_s(self, work: StepWork) -> float:
        """Seconds of the base step."""
        return max(float(work.terms @ self.base), work.floor_s)

    def power_on(self, device: DeviceSpec) -> FloatArray:
        """Weights of `power_terms` on a device that does as the chip does: a byte costs the same joules.

        So streaming takes more of the limit where the memory is faster beside it (B200: 7.7 GB/s a W, H100:
        4.8).
        """
        bytes_per_s, limit_w = self.numbers[0, 1], self.numbers[0, 4]
        weights = self.power.copy()
        weights[_STREAMED] *= device.memory_bytes_per_s / device.tdp_w * limit_w / bytes_per_s
        return weights


class ServingModel:
    """Steps, watts and joules of served decoders."""

    def __init__(self, params: Mapping[str, Any], boosters: Mapping[str, Any]) -> None:
        """`params` as training wrote them; a booster per target."""
        if params.get("power_target") != POWER_TARGET:
            raise InvalidBundle("serving: trained by another version; run `perfcast train`")
        self._chips = [
            _Chip(
                numbers=np.array([chip["numbers"]], dtype=np.float64),
                code=float(chip["code"]),
                base=np.array(chip["base"]),
                power=np.array(chip["power"]),
            )
            for chip in params["bases"]
        ]
        self._any_base = np.array(params["any_base"], dtype=np.float64)
        self._any_power = np.array(params["any_power"], dtype=np.float64)
        self._scale = np.array(params["scale"], dtype=np.float64)
        self._memory = {name: JobMemory.from_json(params["memory"][name]) for name in TARGETS}
        self._means: Mapping[str, float] = params["means"]
        self._spread: Mapping[str, Mapping[str, float]] = params["log_spread"]
        self._boosters = boosters

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> ServingModel:
        """Raises InvalidBundle when the bundle holds none."""
        return cls(bundle.params(MODEL_NAME), {name: bundle.booster(MODEL_NAME, name) for name in TARGETS})

    @classmethod
    def from_trained(cls, trained: TrainedModel) -> ServingModel:
        """A model straight from training."""
        return cls(trained.params, {name: load_booster(blob) for name, blob in trained.boosters.items()})

    def base_s(self, work: StepWork, device: DeviceSpec) -> tuple[float, _Chip | None]:
        """(seconds of the base step, the chip that tells of the device or None where it is like none)."""
        for chip in self._chips:
            if is_known(device, chip.numbers):
                return chip.base_s(work), chip
        return max(float(work.terms @ self._any_base), work.floor_s), None

    def raw(self, job: ServingJob, device: DeviceSpec) -> dict[str, float]:
        """step_s, power_w, energy_j (per token) and the batch that fits, without intervals."""
        work = step_work(job, device)
        step_s, chip = self.base_s(work, device)
        if chip is None:
            # Who else runs on a node, and what its host is like, belongs to the measured servers.
            work = replace(work, lone="")
            step_s, _ = self.base_s(work, device)
            power = self._stranger_power(job, work, device)
        else:
            step_s, power = self._as_chip(job, work, device, chip)
        # Joules are watts times seconds.
        joules = power * job.ranks * step_s / work.batch
        return {"step_s": step_s, "power_w": power, "energy_j": joules, "batch": work.batch}

    def _as_chip(
        self, job: ServingJob, work: StepWork, device: DeviceSpec, chip: _Chip
    ) -> tuple[float, float]:
        """(seconds of a step, watts) of a device that does as the chip does."""
        base_s = chip.base_s(work)
        usual = base_power(work, base_s, chip.power_on(device))
        row = features(job, work, base_s, usual, chip.code)
        found = {name: self._corrected(name, row) for name in TARGETS}
        idle = idle_power_w(device)
        power = idle + (device.tdp_w - idle) * min(0.99, usual * exp(found["power"]))
        return base_s * exp(found["step"]), power

    def _stranger_power(self, job: ServingJob, work: StepWork, device: DeviceSpec) -> float:
        """Watts on a chip like none: of a law, and as each measured chip would draw them.

        The law knows by how far steps exceed their launches. The answer is the geometric mean of what they
        say of the draw above idle, since each errs where the other does not: between A100 and H100 boards of
        one server the law alone is 16.9 % off, with the chips 10.4 %.
        """
        idle = idle_power_w(device)
        span = device.tdp_w - idle
        law = float(power_facts(work) @ self._any_power[:-1]) + float(self._any_power[-1])
        watts = [self._as_chip(job, work, device, chip)[1] for chip in self._chips]
        above = [log(max(LEAST_FRACTION, (power - idle) / span)) for power in watts]
        return idle + span * min(1.0, exp(0.5 * (law + sum(above) / len(above))))

    def predict(self, job: ServingJob, device: DeviceSpec) -> ServingAnswer:
        """The answer with its intervals. Raises InvalidRequest when the weights do not fit."""
        found = self.raw(job, device)
        work = step_work(job, device)
        known = self.base_s(work, device)[1] is not None
        spread = self._spread["known_device" if known else "new_device"]
        step = _interval(found["step_s"], spread["step"])
        token = _interval(found["energy_j"], spread["energy"])
        power = _interval(found["power_w"], spread["power"])
        total = job.replicas * found["batch"]
        request = token.scaled(job.output_tokens)
        prefill = work.prompts_s / max(
            work.prompts_s + max(work.weights_s + work.cache_s, work.compute_s), _TINY_S
        )
        return ServingAnswer(
            step_s=step,
            tokens_per_s=step.inverse(total),
            power_w=Interval(
                power.value, max(power.low, idle_power_w(device)), min(power.high, device.tdp_w)
            ),
            energy_per_token_j=token,
            energy_per_request_j=request,
            prefill_j=request.value * prefill,
            decode_j=request.value * (1.0 - prefill),
            batch=total,
            known_device=known,
        )

    def _corrected(self, name: str, row: FloatArray) -> float:
        trees = float(self._boosters[name].inplace_predict(row[None, :].astype(np.float32))[0])
        memory = self._means[name] + self._memory[name].recall(tuple((row / self._scale).tolist()))
        return 0.5 * (trees + memory)


def base_power(work: StepWork, base_s: float, weights: FloatArray) -> float:
    """Base watts over the limit, of fitted weights (11,) of `power_terms`."""
    asked = max(0.05, float(power_terms(work, base_s) @ weights))
    return float(asked / (1.0 + asked**_BEND) ** (1.0 / _BEND))


def power_asked(over_limit: float) -> float:
    """What base watts would be without a limit: `base_power` before it bends."""
    held = min(over_limit, 0.99)
    return float(held / (1.0 - held**_BEND) ** (1.0 / _BEND))


def power_facts(work: StepWork) -> FloatArray:
    """(2,) what watts of a chip that nobody measured follow: the floor over launches, share of exchange."""
    floor = work.floor_s + work.launch_s
    return np.array([log(floor / work.launch_s), work.exchange_s / floor])


def _interval(value: float, spread: float) -> Interval:
    return Interval(value, value / exp(spread), value * exp(spread))
