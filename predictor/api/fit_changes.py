"""What to change so that a job fits: single changes and, where none suffices, the fewest that do together.

Each change keeps the global batch, so that iteration times compare; adapters train fewer weights and say so.
They are ranked by the predicted slowdown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from predictor.errors import PerfcastError
from predictor.features.lowering.adapters import Adapters
from predictor.fits import Change, check_probability
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest
from predictor.types import Mode, Offload, Precision, Prediction, Recompute, Weights

_NARROW = frozenset({Precision.BF16, Precision.FP16, Precision.AMP})
_MOST_PARTS = 1024
_ADAPTED = frozenset({"q", "k", "v", "o", "mlp"})


class Asked(Protocol):
    """Who answers."""

    def predict(self, request: PredictionRequest) -> Prediction:
        """The answer to one request."""
        ...

    def adapted(self, request: PredictionRequest, adapters: Adapters) -> Prediction:
        """The answer when adapters are trained beside frozen weights."""
        ...


@dataclass(frozen=True, slots=True)
class _Step:
    """A change of a request; None where it changes nothing."""

    what: str
    apply: Callable[[PredictionRequest], PredictionRequest | None]


def changes(asked: Asked, request: PredictionRequest, probability: float) -> list[Change]:
    """Changes with which `request` fits with `probability`, the fastest first; else what comes nearest.

    Raises InvalidRequest (probability), and as `predict` for the request itself.
    """
    check_probability(probability)
    base = asked.predict(request)
    steps = _training_steps(request) if request.mode is Mode.TRAIN else _inference_steps(request.plan)
    found = [change for step in steps if (change := _tried(asked, base, request, (step,), probability))]
    found += _adapters(asked, base, request, probability)
    found += _accumulated(asked, base, request, probability)
    if not any(change.fits for change in found) and request.mode is Mode.TRAIN:
        found += _together(asked, base, request, probability)
    fitting = [change for change in found if change.fits]
    if fitting:
        return sorted(fitting, key=lambda change: change.slowdown)
    return sorted(found, key=lambda change: change.peak.value)


def _plan(**changed: object) -> Callable[[PredictionRequest], PredictionRequest | None]:
    def apply(request: PredictionRequest) -> PredictionRequest | None:
        plan = replace(request.plan, **changed)  # type: ignore[arg-type]
        return None if plan == request.plan else replace(request, plan=plan)

    return apply


def _precision(wanted: Precision) -> Callable[[PredictionRequest], PredictionRequest | None]:
    def apply(request: PredictionRequest) -> PredictionRequest | None:
        return None if request.precision in _NARROW else replace(request, precision=wanted)

    return apply


def _weights(wanted: Weights) -> Callable[[PredictionRequest], PredictionRequest | None]:
    def apply(request: PredictionRequest) -> PredictionRequest | None:
        return None if request.weights is not Weights.FULL else replace(request, weights=wanted)

    return apply


def _zero(stage: int) -> Callable[[PredictionRequest], PredictionRequest | None]:
    def apply(request: PredictionRequest) -> PredictionRequest | None:
        plan = request.plan
        if plan.dp < 2 or plan.zero >= stage:
            return None
        return replace(request, plan=replace(plan, zero=stage))

    return apply


def _offload(*what: Offload) -> Callable[[PredictionRequest], PredictionRequest | None]:
    def apply(request: PredictionRequest) -> PredictionRequest | None:
        offload = request.plan.offload | frozenset(what)
        if offload == request.plan.offload:
            return None
        return replace(request, plan=replace(request.plan, offload=offload))

    return apply


def _training_steps(request: PredictionRequest) -> list[_Step]:
    names = {1: "optimizer state", 2: "and gradients", 3: "and weights"}
    zero = [_Step(f"ZeRO-{stage}: replicas share {names[stage]}", _zero(stage)) for stage in (1, 2, 3)]
    return [
        _Step("mixed precision (amp)", _precision(Precision.AMP)),
        _Step("BF16 throughout", _precision(Precision.BF16)),
        _Step("recompute attention scores (recompute=selective)", _plan(recompute=Recompute.SELECTIVE)),
        _Step("recompute every layer (recompute=full)", _plan(recompute=Recompute.FULL)),
        *zero,
        _Step("optimizer state on the host", _offload(Offload.OPTIMIZER)),
        _Step("optimizer state and weights on the host", _offload(Offload.OPTIMIZER, Offload.PARAMETERS)),
        _Step("activations on the host", _offload(Offload.ACTIVATIONS)),
        *([] if request.plan.device_count > 1 else _more_devices(request.plan)),
    ]


def _inference_steps(plan: Plan) -> list[_Step]:
    return [
        _Step("BF16 throughout", _precision(Precision.BF16)),
        _Step("FP16 throughout", _precision(Precision.FP16)),
        _Step("weights of products in 8 bits (weights=int8)", _weights(Weights.INT8)),
        _Step("weights of products in 4 bits (weights=int4)", _weights(Weights.INT4)),
        *_more_devices(plan),
    ]


def _more_devices(plan: Plan) -> list[_Step]:
    """Weights cut over more devices, up to 8 each."""
    others = plan.device_count // plan.tp
    more = [ways for ways in (2, 4, 8) if ways > plan.tp]
    return [_Step(f"{ways * others} devices (tp={ways})", _plan(tp=ways)) for ways in more]


def _tried(
    asked: Asked,
    base: Prediction,
    request: PredictionRequest,
    steps: Sequence[_Step],
    probability: float,
) -> Change | None:
    """All steps one after the other; None where one changes nothing or cannot be."""
    changed: PredictionRequest | None = request
    try:
        for step in steps:
            changed = step.apply(changed) if changed is not None else None
        if changed is None:
            return None
        answer = asked.predict(changed)
    except PerfcastError:
        return None
    what = " + ".join(step.what for step in steps)
    return _change(what, changed, answer, base, probability)


def _change(
    what: str,
    request: PredictionRequest | None,
    answer: Prediction,
    base: Prediction,
    probability: float,
) -> Change:
    chance = answer.fit_probability
    slowdown = answer.iteration_time_s.value / base.iteration_time_s.value
    return Change(what, request, answer.device_peak_bytes, chance, slowdown, chance >= probability)


def _parts(request: PredictionRequest) -> Iterator[int]:
    """Numbers of microbatches beyond the plan's that divide the batch, each the double of another."""
    if request.batch is None:
        return
    parts = request.plan.microbatches * 2
    while parts <= _MOST_PARTS and request.batch % (parts * request.plan.dp) == 0:
        yield parts
        parts *= 2


def _accumulated(
    asked: Asked, base: Prediction, request: PredictionRequest, probability: float
) -> list[Change]:
    """The fewest microbatches of the same global batch that fit; else the most there can be."""
    if request.mode is not Mode.TRAIN:
        return _smaller(asked, base, request, probability)
    found: Change | None = None
    for parts in _parts(request):
        step = _Step(f"accumulate gradients over {parts} microbatches", _plan(microbatches=parts))
        found = _tried(asked, base, request, (step,), probability)
        if found is None or found.fits:
            break
    return [found] if found is not None else []


def _smaller(asked: Asked, base: Prediction, request: PredictionRequest, probability: float) -> list[Change]:
    """Inference in several smaller batches, one after the other."""
    parts, found = 2, None
    while request.batch and request.batch % (parts * request.plan.dp) == 0 and parts <= _MOST_PARTS:
        batch = request.batch // parts
        try:
            smaller = replace(request, batch=batch)
            answer = asked.predict(smaller)
        except PerfcastError:
            break
        what = f"{parts} batches of {batch}"
        found = _change(what, smaller, answer, base, probability)
        found = replace(found, slowdown=found.slowdown * parts)
        if found.fits:
            break
        parts *= 2
    return [found] if found is not None else []


def _adapters(asked: Asked, base: Prediction, request: PredictionRequest, probability: float) -> list[Change]:
    """Low-rank adapters, and frozen weights in 4 bits: fewer weights are trained. The plainest that fits."""
    if request.mode is not Mode.TRAIN or request.plan != Plan():
        return []
    narrow = request if request.precision is Precision.BF16 else replace(request, precision=Precision.BF16)
    lean = replace(narrow, plan=Plan(recompute=Recompute.FULL))
    kinds = (
        ("LoRA of rank 8, BF16 (trains adapters only)", narrow, None),
        ("QLoRA of rank 8, frozen weights in 4 bits (trains adapters only)", narrow, "nf4"),
        ("LoRA of rank 8, BF16, recompute=full (trains adapters only)", lean, None),
        ("QLoRA of rank 8, recompute=full (trains adapters only)", lean, "nf4"),
    )
    found: list[Change] = []
    for what, job, quantize in kinds:
        try:
            answer = asked.adapted(job, Adapters(8, _ADAPTED, quantize=quantize))
        except PerfcastError:
            return found
        found.append(_change(what, None, answer, base, probability))
        if found[-1].fits:
            break
    return found


def _together(asked: Asked, base: Prediction, request: PredictionRequest, probability: float) -> list[Change]:
    """Changes added in the order of what they usually cost until all fit; those that are not needed go."""
    parts = list(_parts(request))
    order = [
        _Step("mixed precision (amp)", _precision(Precision.AMP)),
        _Step("ZeRO-3", _zero(3)),
        _Step("recompute=full", _plan(recompute=Recompute.FULL)),
        *([_Step(f"{parts[-1]} microbatches", _plan(microbatches=parts[-1]))] if parts else []),
        _Step("optimizer state on the host", _offload(Offload.OPTIMIZER)),
        _Step("weights on the host", _offload(Offload.PARAMETERS)),
    ]
    taken: list[_Step] = []
    best: Change | None = None
    for step in order:
        tried = _tried(asked, base, request, [*taken, step], probability)
        if tried is None or (best is not None and tried.peak.value >= best.peak.value):
            continue
        taken, best = [*taken, step], tried
        if best.fits:
            break
    if best is None or len(taken) < 2:
        return []
    for step in tuple(taken) if best.fits else ():
        fewer = [item for item in taken if item is not step]
        tried = _tried(asked, base, request, fewer, probability) if fewer else None
        if tried is not None and tried.fits:
            taken, best = fewer, tried
    return [best]
