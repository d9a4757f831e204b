"""What is known of measured training energy (reference systems, section 3.17), and coverage by kind of hold.

Limit times time is the guess of most calculators. Against it, joules per image of a network left out must err
half as much at most (E3). What one card needs over another, on runs left out, is within 15 % of what was
measured; with the network left out the order of the cards is what counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from predictor.evaluation.energy_images import ImageRun
from predictor.evaluation.energy_jobs import SUITE, JobCell
from predictor.evaluation.rows import EvaluationRow, absolute_errors, error_rows

HALF, RATIO_GOAL = 0.5, 0.15
NEW_CARD, OLD_CARD = "rtx3090", "gtx750ti"


def known_rows(cells: Sequence[JobCell], runs: Sequence[ImageRun]) -> list[EvaluationRow]:
    """Rows of the baseline and of ratios between cards, from the cells of GAISSA."""
    return [*_limit_rows(cells, runs), *_ratio_rows(cells)]


def _limit_rows(cells: Sequence[JobCell], runs: Sequence[ImageRun]) -> list[EvaluationRow]:
    own = [cell for cell in cells if cell.hold == "model:energy"]
    guess: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        key = (run.sample.device_group, run.sample.model_group)
        guess.setdefault(key, []).append(run.sample.limit_w / run.power_w - 1.0)
    # Measured time, so that the guess errs by nothing but watts.
    errors = np.array([abs(float(np.mean(guess[cell.device, cell.subject]))) for cell in own])
    rows = error_rows(errors, id="E3", suite=SUITE, hold="nothing", group="baseline: limit x measured time")
    ours = absolute_errors([cell.answer[0] for cell in own], [cell.measured for cell in own])
    goal = HALF * float(errors.mean())
    return rows + error_rows(
        ours,
        id="E3",
        suite=SUITE,
        hold="model:energy",
        group="model:energy against half the error of limit x time",
        goal_mean=goal,
    )


def _ratio_rows(cells: Sequence[JobCell]) -> list[EvaluationRow]:
    rows: list[EvaluationRow] = []
    for hold, goal in (("run:energy", RATIO_GOAL), ("model:energy", None)):
        ratios = card_ratios([cell for cell in cells if cell.hold == hold])
        for network, (ours, measured) in sorted(ratios.items()):
            errors = np.array([abs(ours / measured - 1.0)])
            name = f"{hold}: {network}, {NEW_CARD} over {OLD_CARD} ({measured:.2f} measured)"
            rows += error_rows(errors, id="E3", suite=SUITE, hold=hold, group=name, goal_mean=goal)[:1]
        order = [(ours > 1.0) == (measured > 1.0) for ours, measured in ratios.values()]
        # Cards within two per cent of each other have no order to find.
        if sure := [
            right
            for right, (_, measured) in zip(order, ratios.values(), strict=True)
            if abs(measured - 1) > 0.02
        ]:
            group = f"{hold}: order of the cards"
            value = float(np.mean(sure))
            rows.append(EvaluationRow("E3", SUITE, hold, group, "hit_rate", value, None, len(sure)))
    return rows


def card_ratios(cells: Iterable[JobCell]) -> dict[str, tuple[float, float]]:
    """Network -> (our, measured) joules per image on the newer card over those on the older."""
    found: dict[str, dict[str, list[JobCell]]] = {}
    for cell in cells:
        found.setdefault(cell.subject, {}).setdefault(cell.device, []).append(cell)

    def ratio(by_card: Mapping[str, Sequence[JobCell]], ours: bool) -> float:
        new, old = (
            float(np.mean([cell.answer[0] if ours else cell.measured for cell in by_card[card]]))
            for card in (NEW_CARD, OLD_CARD)
        )
        return new / old

    return {
        network: (ratio(by_card, True), ratio(by_card, False))
        for network, by_card in found.items()
        if {NEW_CARD, OLD_CARD} <= by_card.keys()
    }


KINDS: Mapping[str, str] = {
    "shape:all": "kernel watts, shapes left out",
    "chip:all": "kernel watts, chip left out",
    "workload:all": "watts of a job, workload left out",
    "network:all": "watts of a job, network left out",
    "device:all": "watts of a job, device left out",
    "model:power:all": "watts of a small job, network left out",
    "model:energy:all": "joules per image, network left out",
    "served, model left out: W per device": "watts of served decoders, decoder left out",
    "served, model left out: J per token": "joules per token, decoder left out",
    "served, chip left out: W per device": "watts of served decoders, chip left out",
    "served, chip left out: J per token": "joules per token, chip left out",
    "cap held out: time": "time under a cap, cap left out",
    "cap held out: power": "watts under a cap, cap left out",
    "node:fitted on the other benchmarks": "watts of nodes, benchmark left out",
    "node:bottom-up": "watts of nodes, none measured",
}
"""Group of a coverage row -> its kind of hold in E6. Runs left out at random are no groups."""


def interval_rows(rows: Sequence[EvaluationRow]) -> list[EvaluationRow]:
    """Coverage of 90 % intervals, one row per kind of hold (E6), gathered from the suite's own rows."""
    return [
        EvaluationRow("E6", SUITE, row.hold, KINDS[row.group], "coverage", row.value, 0.9, row.n)
        for row in rows
        if row.metric == "coverage" and row.group in KINDS
    ]
