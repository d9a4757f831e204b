"""Plan search against asking about every plan (D7).

Top-1 regret: how much slower the plan that the search names is than the best of all plans of a small space,
each asked of the public predictor. What a search costs at scale: benchmarks/plans.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from predictor.api import Predictor
from predictor.errors import InvalidPlan
from predictor.evaluation.report import Table
from predictor.evaluation.rows import EvaluationRow
from predictor.features.architectures.gpt_megatron import MegatronConfig, megatron_gpt
from predictor.features.architectures.residual import RESNETS, resnet_family
from predictor.models.corpus.build import Progress
from predictor.request import PredictionRequest
from predictor.search.search import SearchResult
from predictor.search.space import SearchSpace
from predictor.types import Mode, Optimizer, Precision, Recompute

GOAL_REGRET = 0.03
_SMALL = SearchSpace(
    max_devices=8,
    dp=(1, 2, 8),
    tp=(1, 2),
    pp=(1, 2, 4),
    samples=(1, 2),
    zero=(0, 3),
    chunks=(2,),
    recompute=(Recompute.NONE,),
)


@dataclass(frozen=True, slots=True)
class SmallCase:
    """A search that was checked plan by plan; seconds of an iteration."""

    model: str
    plans: int
    fitting: int
    best_s: float
    found_s: float

    @property
    def regret(self) -> float:
        """found / best - 1"""
        return self.found_s / self.best_s - 1


def small_cases(predictor: Predictor, progress: Progress) -> list[SmallCase]:
    """Searches on one node, each checked against every plan of its space."""
    models = {
        "GPT, 8 layers": megatron_gpt(MegatronConfig(8, 1024, 16), sequence=512, flash=True),
        "ResNet-50": resnet_family(RESNETS["resnet50"]),
    }
    found = []
    for number, (name, graph) in enumerate(models.items()):
        progress(f"every plan of {name}", number, len(models))
        asked = PredictionRequest(
            graph,
            "a100-sxm-80gb",
            batch=16,
            mode=Mode.TRAIN,
            precision=Precision.AMP,
            optimizer=Optimizer.ADAM,
            cluster="dgx-a100-80gb:1",
        )
        result = predictor.search_plans(asked, space=_SMALL)
        times = list(_every(predictor, asked, result))
        found.append(
            SmallCase(name, result.considered, len(times), min(times), result.best[0].outcome.time_s)
        )
    return found


def _every(predictor: Predictor, asked: PredictionRequest, result: SearchResult) -> Iterable[float]:
    from predictor.search.space import candidates

    source = predictor.plan_source(asked)
    table = candidates(_SMALL, source.facts())
    for row in range(len(table)):
        try:
            answer = predictor.predict(replace(asked, plan=table.plan(row)))
        except InvalidPlan:
            continue
        if answer.fits:
            yield answer.iteration_time_s.value


def search_rows(cases: list[SmallCase]) -> list[EvaluationRow]:
    """The regret of D7."""
    regret, plans = max(case.regret for case in cases), sum(case.plans for case in cases)
    row = EvaluationRow(
        "D7", "distributed", "every plan", "plan search", "top1_regret", regret, GOAL_REGRET, plans
    )
    return [row]


def search_table(cases: list[SmallCase]) -> Table:
    """What was searched, and what every plan of it says."""
    lines = tuple(
        (case.model, str(case.plans), str(case.fitting), f"{case.best_s:.4f}", f"{case.found_s:.4f}")
        for case in cases
    )
    return Table("Plan search, every plan asked", ("model", "plans", "fit", "best s", "found s"), lines)
