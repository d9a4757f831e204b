"""Fine-tuning jobs and fit decisions (M3): one tool left out, one network left out.

Peaks are judged as the timeline gives them and, beside, with the correction learned from the other tools (or
networks) and Megatron-LM's runs. A decision is right when a job that ran is given more than an even chance
and one that ran out of memory is not; jobs of a bracket are the batch that ran and the one that did not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.evaluation.rows import EvaluationRow, error_rows
from predictor.hardware.catalog import find_device
from predictor.hardware.spec import usable_bytes
from predictor.models.corpus.finetune import LITGPT, QWEN, TORCHTUNE
from predictor.models.corpus.memory_brackets import DEVICE
from predictor.models.memory.allocated import ALLOCATED_FEATURES, FACTOR_RANGE, AllocatedModel
from predictor.models.memory.allocated_training import (
    AllocatedRows,
    finetune_rows,
    fit_allocated,
    joined_rows,
    measured_rows,
)
from predictor.models.memory.bounds_training import bound_rows, held_out_probabilities

if TYPE_CHECKING:
    import polars as pl

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

SUITE, ID = "memory", "M3"
GOAL_MEAN, GOAL_RIGHT, GOAL_CALLED_FITS, GOAL_FACTOR = 0.12, 0.95, 0.02, 0.95


def tool_rows(table: pl.DataFrame, golden: AllocatedRows, context_bytes: float) -> list[EvaluationRow]:
    """Errors of each tool's peaks: uncorrected, corrected without that tool, and without each network."""
    import polars as pl

    measured = table.filter(~pl.col("oom") & pl.col("measured_bytes").is_not_null())
    found: list[EvaluationRow] = []
    factors: list[FloatArray] = []
    for tool in (LITGPT, QWEN, TORCHTUNE):
        # torchtune's rows give no length of their own: reported, with no goal.
        part = measured.filter(
            (pl.col("tool") == tool) & (pl.col("has_length") | (pl.col("tool") == TORCHTUNE))
        )
        if not part.height:
            continue
        held = measured_rows(part, context_bytes)
        known = joined_rows(golden, finetune_rows(measured.filter(pl.col("tool") != tool), context_bytes))
        by_tool = AllocatedModel.from_trained(fit_allocated(known)).factors(held.features)
        by_network = _network_factors(part, measured, golden, context_bytes)
        if tool != TORCHTUNE:
            factors.append(by_tool)
        context = np.where(part["kind"].to_numpy() == "device", context_bytes, 0.0)
        goal = None if tool == TORCHTUNE else GOAL_MEAN
        for group, hold, factor, wanted in (
            (tool, "none", np.ones(len(held)), None),
            (f"{tool}, corrected", "tool", by_tool, goal),
            (f"{tool}, corrected, network out", "network", by_network, None),
        ):
            errors = np.abs((held.floor_bytes * factor + context) / part["measured_bytes"].to_numpy() - 1.0)
            found += error_rows(errors, id=ID, suite=SUITE, hold=hold, group=group, goal_mean=wanted)
    return [*found, factor_row(np.concatenate(factors))]


def factor_row(factors: FloatArray) -> EvaluationRow:
    """Share of factors inside the range; those at its edges have left it."""
    low, high = FACTOR_RANGE
    inside = float(((factors > low * (1 + 1e-6)) & (factors < high * (1 - 1e-6))).mean())
    group = "fine-tuning, factors in x0.7-1.5"
    return EvaluationRow(ID, SUITE, "tool", group, "hit_rate", inside, GOAL_FACTOR, len(factors))


def fit_rows(
    table: pl.DataFrame,
    golden: AllocatedRows,
    brackets: pl.DataFrame,
    plans: pl.DataFrame,
    context_bytes: float,
) -> list[EvaluationRow]:
    """Decisions over litgpt's rows that ran out of memory, BigScience's, and timm's brackets."""
    rows = bound_rows(brackets)
    needed = brackets["needed_bytes"].to_numpy() <= usable_bytes(find_device(DEVICE))
    parts = (
        ("litgpt OOM rows", *_litgpt_calls(table, golden, context_bytes)),
        ("BigScience OOM rows", *_plan_calls(plans, context_bytes)),
        ("timm brackets", held_out_probabilities(rows) > 0.5, rows.ran),
    )
    found = [row for group, called, ran in parts for row in _decisions(group, called, ran)]
    found += _decisions("timm brackets, timeline alone", needed, rows.ran)
    called, ran = (np.concatenate([part[place] for part in parts]) for place in (1, 2))
    return [*found, *_decisions("all fit decisions", called, ran, goals=True)]


def _network_factors(
    part: pl.DataFrame, measured: pl.DataFrame, golden: AllocatedRows, context_bytes: float
) -> FloatArray:
    """(rows of `part`,) factors by models that saw no row of the row's network."""
    import polars as pl

    found = np.ones(part.height)
    networks = part["model"].to_numpy()
    for network in np.unique(networks):
        others = finetune_rows(measured.filter(pl.col("model") != str(network)), context_bytes)
        model = AllocatedModel.from_trained(fit_allocated(joined_rows(golden, others)))
        held = networks == network
        features = part.filter(pl.col("model") == str(network)).select(ALLOCATED_FEATURES)
        found[held] = model.factors(features.to_numpy().astype(np.float64))
    return found


def _litgpt_calls(
    table: pl.DataFrame, golden: AllocatedRows, context_bytes: float
) -> tuple[BoolArray, BoolArray]:
    """(called fits, ran) of the rows that ran out of memory, their networks left out of the correction."""
    import polars as pl

    oom = table.filter(pl.col("oom"))
    capacity = np.array([usable_bytes(find_device(name)) for name in oom["device"]])
    factors = _network_factors(oom, table, golden, context_bytes)
    called = oom["floor_bytes"].to_numpy() * factors + context_bytes <= capacity
    return called, np.zeros(oom.height, dtype=bool)


def _plan_calls(plans: pl.DataFrame, context_bytes: float) -> tuple[BoolArray, BoolArray]:
    """As `_litgpt_calls`: what nvidia-smi showed over the floor is learned from the other networks' rows."""
    import polars as pl

    oom = plans.filter(pl.col("oom"))
    ran = plans.filter(~pl.col("oom"))
    called = []
    for row in oom.iter_rows(named=True):
        others = ran.filter(pl.col("model") != row["model"])
        ratio = others["noted_bytes"].to_numpy() / (others["floor_bytes"].to_numpy() + context_bytes)
        peak = (row["floor_bytes"] + context_bytes) * float(np.median(ratio))
        called.append(peak <= usable_bytes(find_device(row["device"])))
    return np.array(called, dtype=bool), np.zeros(oom.height, dtype=bool)


def _decisions(group: str, called: BoolArray, ran: BoolArray, *, goals: bool = False) -> list[EvaluationRow]:
    failed = ~ran
    right, wrong = float((called == ran).mean()), float(called[failed].mean())
    numbers = (
        ("hit_rate", right, GOAL_RIGHT, len(ran)),
        ("called_fits", wrong, GOAL_CALLED_FITS, failed.sum()),
    )
    return [
        EvaluationRow(ID, SUITE, "network", group, name, value, goal if goals else None, int(count))
        for name, value, goal, count in numbers
    ]
