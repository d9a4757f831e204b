"""Counts the work of every timm export of the corpus, in two processes, and keeps the counts beside it.

A sweep takes minutes; the counts of a graph hold as long as the code that reads and counts graphs, the bundle
and the file stay the same.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path

from predictor.api import Predictor
from predictor.errors import InvalidData, OutputNotWritable, PerfcastError
from predictor.features.execution import execution_order, with_gradient
from predictor.features.graph import Graph, Node
from predictor.features.programs.program import build_program
from predictor.features.programs.work import Convolution, Family, OpWork
from predictor.features.reading.reader import read_graph
from predictor.models.corpus.build import Progress, silent
from predictor.request import PredictionRequest
from predictor.types import Mode, Optimizer, Precision, Runtime

DEVICE = "a100-sxm-40gb"
"""Where the share of fallback is priced."""
CACHE = "timm_graph_counts.json"
PROCESSES = 2
_FEATURES = Path(__file__).resolve().parents[1] / "features"


@dataclass(frozen=True, slots=True)
class GraphCount:
    """One export read at batch 1 and counted as eager FP32 inference.

    Attributes:
        products: matrix FLOPs by kind of product: `convolution`, `depthwise`, `linear` (by a weight),
            `product` (of two computed tensors), `attention`, `recurrent`.
        elements: elements that pass through each kind of normalization (of weights: `weight_norm`; `_plain`
            without scale and shift), that global pooling reads and that resizing writes, by its mode.
        fallback_fraction: part of the predicted time on DEVICE in ops without a rule.
        error: message of the refusal; the numbers are 0 then.
    """

    file: str
    model: str
    image_size: int
    nodes: int = 0
    parameters: int = 0
    buffers: int = 0
    products: Mapping[str, int] = field(default_factory=dict)
    elements: Mapping[str, int] = field(default_factory=dict)
    op_types: Mapping[str, int] = field(default_factory=dict)
    uncovered: tuple[str, ...] = ()
    fallback_fraction: float = 0.0
    error: str = ""

    @property
    def macs(self) -> int:
        """Multiply-adds of all matrix products and convolutions."""
        return sum(self.products.values()) // 2


def count_graph(path: Path, model: str, image_size: int, predictor: Predictor) -> GraphCount:
    """Reads and counts one export; a PerfcastError becomes the count's `error`."""
    try:
        graph = read_graph(gzip.decompress(path.read_bytes()), batch=1)
        return _count(graph, path.name, model, image_size, predictor)
    except PerfcastError as error:
        return GraphCount(path.name, model, image_size, error=error.message)


def _count(graph: Graph, file: str, model: str, image_size: int, predictor: Predictor) -> GraphCount:
    program = build_program(
        graph, mode=Mode.INFER, precision=Precision.FP32, optimizer=Optimizer.NONE, runtime=Runtime.EAGER
    )
    products: Counter[str] = Counter()
    for op in program.ops:
        products[_product(op.work)] += op.work.matrix_flops
    uncovered = tuple(sorted({op.op_type for op in program.ops if not op.covered}))
    # Where every op has a rule nothing falls back, and pricing would double the time of the sweep.
    fallback = predictor.predict(PredictionRequest(graph, DEVICE)).coverage.fallback if uncovered else 0.0
    return GraphCount(
        file=file,
        model=model,
        image_size=image_size,
        nodes=len(graph.nodes),
        parameters=graph.parameter_count,
        buffers=sum(graph.values[name].elements for name in graph.buffers),
        products={name: flops for name, flops in products.items() if flops},
        elements=_elements(graph),
        op_types=dict(Counter(node.op_type for node in graph.nodes)),
        uncovered=uncovered,
        fallback_fraction=fallback,
    )


def _product(work: OpWork) -> str:
    if isinstance(work.shape, Convolution):
        return "depthwise" if work.shape.groups == work.shape.in_channels > 1 else "convolution"
    if work.family in (Family.ATTENTION, Family.RECURRENT):
        return work.family.value
    return "linear" if work.parameter_bytes else "product"


_NORMS = {
    "BatchNormalization": "batch_norm",
    "LayerNormalization": "layer_norm",
    "GroupNormalization": "group_norm",
    # Exporters of opset 17 spell a group norm so, with the affine part behind it.
    "InstanceNormalization": "group_norm",
}


def _elements(graph: Graph) -> dict[str, int]:
    weights, trained = execution_order(graph)[1], with_gradient(graph, graph.nodes)
    found: Counter[str] = Counter()
    for node in graph.nodes:
        name, operand = _counted(node, weights, trained)
        if name:
            found[name] += graph.values[operand].elements
    return dict(found)


def _counted(node: Node, weights: set[str], trained: set[str]) -> tuple[str, str]:
    """Kind of a norm, pool or resampling, and the tensor whose elements count; empty for other nodes.

    A norm has scale and shift where its scale is trained, or computed from what is.
    """
    if node.op_type == "GlobalAveragePool":
        return "global_pool", node.inputs[0]
    if node.op_type == "Resize":
        return f"resize_{node.attributes.get('mode', 'nearest')}", node.outputs[0]
    name = _NORMS.get(node.op_type, "")
    if not name:
        return "", ""
    affine = node.op_type == "InstanceNormalization" or node.inputs[1] in trained
    kind = "weight_norm" if node.inputs[0] in weights else name
    return kind if affine else f"{kind}_plain", node.inputs[0]


def count_graphs(
    folder: Path, cache_folder: Path, bundle: Path | None = None, progress: Progress = silent
) -> list[GraphCount]:
    """Counts of all exports in file order, from the cache where that is still true.

    Raises InvalidData (no exports), OutputNotWritable (cache).
    """
    index = _read_index(folder)
    key = _key(index, Predictor.load(bundle).bundle_id)
    path = cache_folder / CACHE
    known = _cached(path, key)
    if known is not None:
        return known
    jobs = [(str(folder / file), model, size, bundle) for file, model, size in index]
    found: list[GraphCount] = []
    with ProcessPoolExecutor(PROCESSES, get_context("spawn"), initializer=_start) as pool:
        for done, count in enumerate(pool.map(_job, jobs, chunksize=8), 1):
            found.append(count)
            progress("timm graphs", done, len(jobs))
    try:
        cache_folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"key": key, "graphs": [asdict(item) for item in found]}), "utf-8")
    except OSError as error:
        raise OutputNotWritable(f"{path}: cannot be written ({error.strerror or error})") from None
    return found


def _start() -> None:
    os.nice(19)


@cache
def _predictor(bundle: Path | None) -> Predictor:
    return Predictor.load(bundle)


def _job(job: tuple[str, str, int, Path | None]) -> GraphCount:
    path, model, size, bundle = job
    return count_graph(Path(path), model, size, _predictor(bundle))


def _read_index(folder: Path) -> list[tuple[str, str, int]]:
    """(file, model, image size) of each export."""
    path = folder / "index.jsonl"
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
        return sorted((line["file"], line["model"], int(line["image_size"])) for line in lines)
    except (OSError, ValueError, KeyError) as error:
        raise InvalidData(f"{path}: no index of exports ({error})") from None


def _key(index: Sequence[tuple[str, str, int]], bundle_id: str) -> str:
    digest = hashlib.sha256(f"{bundle_id} {index}".encode())
    for source in (Path(__file__), *sorted(_FEATURES.rglob("*.py"))):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _cached(path: Path, key: str) -> list[GraphCount] | None:
    if not path.is_file():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.get("key") != key:
        return None
    return [GraphCount(**{**item, "uncovered": tuple(item["uncovered"])}) for item in content["graphs"]]
