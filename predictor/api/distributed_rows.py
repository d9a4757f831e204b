"""Published distributed iterations as the composition sees them: facts of each row, kept on disk.

Rows that share a graph are priced one after the other; of a run of equal layers a few are priced and stand
for all (as in the plan search), and every row is written down as soon as it is known. The file is named after
the models that price ops and the code that composes: another bundle, or an edit, composes anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.compose.even_stages import even_ends, merged
from predictor.compose.plan_cost import MicrobatchCosts, compose_plan, microbatch_costs
from predictor.compose.rank_costs import IntArray
from predictor.compose.step_facts import op_copies, step_facts
from predictor.compose.time import ProgramCosts
from predictor.errors import InvalidPlan, PerfcastError
from predictor.features.lowering.layers import Segments, segments
from predictor.features.lowering.narrow_products import with_narrow_products
from predictor.features.programs.work import Family, Program
from predictor.features.reading.reader import read_graph
from predictor.files import code_version
from predictor.hardware.catalog import find_device
from predictor.models.corpus.build import Progress, silent
from predictor.models.corpus.distributed import DistributedRow
from predictor.models.corpus.distributed_graphs import Recipe, build
from predictor.models.plans.exchange_curves import MODEL_NAME as EXCHANGES
from predictor.models.plans.step_correction import StepFacts
from predictor.request import PredictionRequest
from predictor.types import Mode, Optimizer, Recompute, Runtime, Trainer

if TYPE_CHECKING:
    from predictor.api.predictor import Predictor
    from predictor.features.lowering.thin import ThinGraph
    from predictor.models.bundle import Bundle

_PRICING = ("op_time", "step_time", "kernel_time")
_PACKAGE = Path(__file__).resolve().parents[1]
_CODE = tuple(_PACKAGE / name for name in ("api", "compose", "features", "hardware", "models", "parallel"))
FOLDER = "composed"
_LAYERS = 9
"""Layers of a graph that stands for a deeper one: three dense ones, and six that are counted on."""


def pricing_id(bundle: Bundle) -> str:
    """Names what decides what ops and iterations cost: models of a bundle, and the code."""
    models = bundle.manifest["models"]
    names = (*_PRICING, EXCHANGES) if EXCHANGES in models else _PRICING
    priced_by = {name: models.get(name) for name in names}
    text = json.dumps({**priced_by, "code": code_version(*_CODE)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def composed_rows(
    rows: Iterable[DistributedRow],
    predictor: Predictor,
    bundle: Bundle,
    corpus: Path,
    *,
    progress: Progress = silent,
) -> Mapping[str, StepFacts]:
    """Facts by row id; rows that cannot be composed are absent.

    Args:
        corpus: the folder to keep them in.
    """
    path = corpus / FOLDER / f"distributed-{pricing_id(bundle)}.jsonl"
    known = _read(path)
    absent = sorted((row for row in rows if row.row_id not in known), key=_order)
    path.parent.mkdir(parents=True, exist_ok=True)
    composer = Composer(predictor)
    with path.open("a", encoding="utf-8") as out:
        for done, row in enumerate(absent):
            progress("composing published iterations", done, len(absent))
            try:
                known[row.row_id] = facts = composer.facts(row)
                line: dict[str, Any] = {"row_id": row.row_id, "facts": asdict(facts)}
            except PerfcastError as error:
                line = {"row_id": row.row_id, "error": error.message}
            out.write(json.dumps(line) + "\n")
            out.flush()
    return {row_id: facts for row_id, facts in known.items() if facts is not None}


@dataclass(frozen=True, slots=True)
class _Few:
    """A graph of few layers and the run of equal ones that stands for more."""

    thin: ThinGraph
    left_out: int


class Composer:
    """Composes rows; keeps the last graph and the last rank, so rows should come in their order."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._graph: tuple[Any, _Few] | None = None

    def facts(self, row: DistributedRow) -> StepFacts:
        """Facts of one row. Raises InvalidPlan: its graph cannot be split so."""
        plan, samples = row.plan, row.batch // row.plan.dp // row.plan.microbatches
        cluster = None if row.cluster is None else self._predictor.links.measured(row.cluster)
        few = self._few(row.recipe, samples)
        request = PredictionRequest(
            few.thin.graph,
            row.device,
            batch=samples,
            mode=Mode.TRAIN,
            precision=row.precision,
            optimizer=Optimizer.ADAM,
            runtime=row.runtime,
            plan=plan,
            cluster=row.cluster,
            # Publishers that recompute do it in a framework (Megatron-DeepSpeed, LLM Foundry), split or not.
            trainer=Trainer.AUTO if plan.recompute is Recompute.NONE else Trainer.MEGATRON,
        )
        _, rank = self._predictor._rank(request, needs_graph=True)
        device, wide = find_device(row.device), rank.program
        rank = replace(rank, program=with_narrow_products(wide, row.narrow))
        costs = self._predictor._priced(rank.program, device, request)
        if row.narrow and row.runtime is Runtime.EAGER:
            wide_costs = self._predictor._priced(wide, device, request)
            costs = _with_attention(rank.program, costs, wide, wide_costs)
        found = microbatch_costs(
            rank,
            costs,
            runtime=row.runtime,
            plan=plan,
            cluster=cluster,
            device=device,
            framework=request.runs_framework,
        )
        rows = None
        if few.left_out:
            from predictor.features.lowering.thin import whole_rows

            rows = None if rank.pieces is None else whole_rows(few.thin, rank.pieces)
            found = _repeated(found, rows)
        chunks = plan.pp * plan.virtual_stages
        if plan.pp > 1 and rank.pieces is not None and row.recipe.layers % chunks == 0:
            # Who trains with Megatron-LM gives every stage equally many layers where they divide.
            kinds = [
                rank.pieces.repeats[piece] for piece in (range(len(rank.pieces)) if rows is None else rows)
            ]
            if (ends := even_ends(kinds, chunks)) is not None:
                found = replace(found, columns=merged(found.columns, ends))
        time, _ = compose_plan(found, plan, cluster, training=True)
        return step_facts(rank.program, costs, op_copies(rank, rows), time, plan, device, cluster)

    def _few(self, recipe: Recipe, samples: int) -> _Few:
        key = (recipe, samples)
        if self._graph is None or self._graph[0] != key:
            self._graph = (key, _few_layers(recipe, samples))
        return self._graph[1]


def _with_attention(
    program: Program, costs: ProgramCosts, wide: Program, wide_costs: ProgramCosts
) -> ProgramCosts:
    """`costs` of a job with narrow products, its attention as long as in the same job of 16 bits.

    Attention is not narrowed, and what a framework runs for it does not change: FlashAttention-2 in eager
    torch, whose backward pass takes 2 to 3 times as long on Hopper as the kernel that NVIDIA's stack has.
    """
    known = {
        op.kernel: time_s
        for op, time_s in zip(wide.ops, wide_costs.time_s.tolist(), strict=True)
        if op.work.family is Family.ATTENTION
    }
    time_s = costs.unique.time_s.copy()
    for place, op in zip(costs.index.tolist(), program.ops, strict=True):
        time_s[place] = known.get(op.kernel, time_s[place])
    return replace(costs, unique=replace(costs.unique, time_s=time_s))


def _few_layers(recipe: Recipe, samples: int) -> _Few:
    from predictor.features.lowering.thin import LayerRun, ThinGraph

    if recipe.layers <= _LAYERS or recipe.style == "t5":
        return _Few(ThinGraph(read_graph(build(recipe), batch=samples), ()), 0)
    graph = read_graph(build(replace(recipe, layers=_LAYERS)), batch=samples)
    pieces = segments(graph)
    left_out = recipe.layers - _LAYERS
    first, last = _longest_run(pieces)
    run = LayerRun(tuple(_parameters(pieces, piece) for piece in range(first, last)), left_out)
    return _Few(ThinGraph(graph, (run,)), left_out)


def _longest_run(pieces: Segments) -> tuple[int, int]:
    """(first, last + 1) of the longest run of equal pieces."""
    best, first = (0, 0), 0
    for index in range(1, len(pieces) + 1):
        if index == len(pieces) or pieces.repeats[index] != pieces.repeats[first]:
            best = max(best, (first, index), key=lambda run: run[1] - run[0])
            first = index
    return best


def _parameters(pieces: Segments, piece: int) -> frozenset[str]:
    begin = pieces.ends[piece - 1] if piece else 0
    roots = pieces.weight_roots
    nodes = pieces.nodes[begin : pieces.ends[piece]]
    return frozenset().union(*(roots.get(name, frozenset()) for node in nodes for name in node.inputs))


def _repeated(found: MicrobatchCosts, rows: IntArray | None) -> MicrobatchCosts:
    from predictor.compose.rank_costs import repeated

    columns = None if rows is None else repeated(found.columns, rows)
    if columns is None:
        raise InvalidPlan("a few layers of this model cannot stand for all of them")
    return replace(found, columns=columns)


def _order(row: DistributedRow) -> tuple[Any, ...]:
    """Rows of one rank's program one after the other."""
    plan = row.plan
    return (row.source, row.recipe, row.batch // plan.dp // plan.microbatches, plan.tp, plan.cp, plan.ep)


def _read(path: Path) -> dict[str, StepFacts | None]:
    if not path.is_file():
        return {}
    found: dict[str, StepFacts | None] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        found[line["row_id"]] = StepFacts(**line["facts"]) if "facts" in line else None
    return found
