"""Time, energy, carbon and money of whole runs: to a number of steps, of epochs, or to a target accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from predictor.api.predictor import Predictor
from predictor.compose.completion import S_PER_HOUR, Completion, RunLength, complete
from predictor.errors import InvalidRequest
from predictor.request import PredictionRequest
from predictor.types import Mode, Optimizer, Prediction


def completions(
    predictor: Predictor,
    request: PredictionRequest,
    length: RunLength,
    batches: Sequence[int] = (),
    limits_w: Sequence[float | None] = (),
    *,
    horizon_hours: int | None = None,
) -> tuple[Completion, ...]:
    """The run of `length` at every batch and cap, in that order.

    Under an hourly trace carbon is that of the hours of the run, from the accounting's start hour on.

    Args:
        predictor: answers.
        request: a training step; its batch and cap are replaced where others are given.
        length: steps, epochs, or a learning curve.
        batches, limits_w: global batches, and caps per device in W; none keeps the request's.
        horizon_hours: see `complete`.

    Raises InvalidRequest when the request is no training step, and what `predict` raises.
    """
    if request.mode is not Mode.TRAIN:
        raise InvalidRequest("a run to completion trains; mode is infer", field="mode")
    found = []
    for batch in batches or (request.batch,):
        for limit in limits_w or (request.power_limit_w,):
            one = replace(request, batch=batch, power_limit_w=limit)
            found.append(_completion(predictor, one, length, horizon_hours))
    return tuple(found)


def _completion(
    predictor: Predictor, request: PredictionRequest, length: RunLength, horizon_hours: int | None
) -> Completion:
    step = predictor.predict(request)
    batch = step.iteration_time_s.value * step.throughput_samples_per_s.value
    batch = float(round(batch)) if abs(batch - round(batch)) < 1e-6 * batch else batch
    checked: Prediction | None = None
    forward = replace(request, mode=Mode.INFER, optimizer=Optimizer.NONE, plan=request.plan.for_inference())
    if length.validation_samples:
        checked = predictor.predict(forward)
    accounting = request.accounting
    if accounting is not None and accounting.place is not None and accounting.place.trace is not None:
        whole = complete(step, batch, length, validation=checked, accounting=accounting)
        accounting = replace(accounting, hours=whole.time_s.value / S_PER_HOUR)
        step = predictor.predict(replace(request, accounting=accounting))
        if checked is not None:
            checked = predictor.predict(replace(forward, accounting=accounting))
    return complete(
        step, batch, length, validation=checked, accounting=accounting, horizon_hours=horizon_hours
    )
