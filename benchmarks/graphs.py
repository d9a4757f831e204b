"""What reading graphs costs: cold graphs, huge graphs, files full of weights, torch capture (G5).

    python benchmarks/graphs.py [--write]

CPU time, not wall time. Every figure comes from fresh processes; interpreter and imports are not in it
unless the row says so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from huge_files import mixed_model, write_inline
from latency import decoder
from record import ROOT, forget_peak, own_bytes, process_status, table, write

REPEATS = 5
_MIB = 2**20
_LAYERS = 53
_HUGE_NODES = 100_000
_INLINE_BYTES = 1_950 * _MIB
_TENSOR_BYTES = 65 * _MIB


def _cold(folder: Path) -> dict[str, float]:
    """One cold graph of 1000 nodes: read, and read plus program. Run in a process of its own."""
    from predictor.features.reading.reader import read_graph

    # Rules, schemas and caches are part of a warm process; the graph is new to it.
    _program(read_graph(decoder(2, 64)))
    data = decoder(_LAYERS, 256)
    start_s = time.process_time()
    graph = read_graph(data, batch=1)
    read_s = time.process_time() - start_s
    ops = _program(graph)
    return {
        "read_s": read_s,
        "all_s": time.process_time() - start_s,
        "nodes": 19 * _LAYERS,
        "ops": ops,
        "bytes": len(data),
    }


def _first(folder: Path) -> dict[str, float]:
    """The same as the first graph of the process: imports and rules included."""
    data = decoder(_LAYERS, 256)
    start_s = time.process_time()
    from predictor.features.reading.reader import read_graph

    _program(read_graph(data, batch=1))
    return {"all_s": time.process_time() - start_s}


def _huge(folder: Path) -> dict[str, float]:
    """100,000 nodes: residual, separable and attention blocks."""
    path = folder / "huge.onnx"
    from predictor.features.reading.reader import read_graph

    _program(read_graph(decoder(2, 64)))
    resident = process_status(os.getpid())["resident_bytes"]
    start_s = time.process_time()
    graph = read_graph(path, batch=1)
    read_s = time.process_time() - start_s
    peak = process_status(os.getpid())["peak_resident_bytes"]
    ops = _program(graph)
    infer_s = time.process_time() - start_s
    infer_peak = process_status(os.getpid())["peak_resident_bytes"]
    start_s = time.process_time()
    training_ops = _program(graph, training=True)
    return {
        "bytes": path.stat().st_size,
        "read_s": read_s,
        "all_s": infer_s,
        "train_s": read_s + time.process_time() - start_s,
        "ops": ops,
        "training_ops": training_ops,
        "read_peak_bytes": peak - resident,
        "peak_bytes": infer_peak - resident,
    }


def _answer(folder: Path) -> dict[str, float]:
    """The whole answer for the huge graph, training: from the file to time, memory and energy."""
    from predictor.api import Predictor
    from predictor.request import PredictionRequest

    predictor = Predictor.load()
    predictor.predict(PredictionRequest(decoder(2, 64), "a100-sxm-40gb", batch=1))
    request = PredictionRequest(
        folder / "huge.onnx",
        "a100-sxm-40gb",
        batch=1,
        mode="train",  # type: ignore[arg-type]
        optimizer="adamw",  # type: ignore[arg-type]
    )
    start_s = time.process_time()
    predictor.predict(request)
    return {"all_s": time.process_time() - start_s}


def _inline(folder: Path) -> dict[str, float]:
    """A file of 2 GB that is nearly all weights."""
    from predictor.features.reading.reader import read_graph
    from predictor.features.reading.strip import strip_model

    path = folder / "inline.onnx"
    read_graph(decoder(2, 64))
    structure = len(strip_model(path))
    forget_peak()
    before = process_status(os.getpid())
    anonymous = own_bytes("RssAnon")
    start_s = time.process_time()
    read_graph(path, batch=1)
    used_s = time.process_time() - start_s
    after = process_status(os.getpid())
    return {
        "bytes": path.stat().st_size,
        "structure_bytes": structure,
        "read_s": used_s,
        "grown_peak_bytes": after["peak_resident_bytes"] - before["resident_bytes"],
        "grown_own_bytes": own_bytes("RssAnon") - anonymous,
    }


def _capture(folder: Path) -> dict[str, float]:
    """ResNet-50 captured by torch: forward, backward and optimizer step, first and again."""
    import torch

    from predictor.evaluation.torch_networks import resnet
    from predictor.features.torch_capture import TorchModel
    from predictor.types import Mode, Optimizer, Precision, Runtime

    start_s = time.process_time()
    # The optimizer's step imports it when it runs for the first time.
    import torch._dynamo

    import_s = time.process_time() - start_s
    module = resnet()
    samples = []
    for _ in range(3):
        start_s = time.process_time()
        model = TorchModel(module, (torch.empty(32, 3, 224, 224, device="meta"),))
        program = model.program(
            mode=Mode.TRAIN, precision=Precision.FP32, optimizer=Optimizer.SGD, runtime=Runtime.EAGER
        )
        samples.append(time.process_time() - start_s)
    return {"import_s": import_s, "first_s": samples[0], "again_s": min(samples[1:]), "ops": len(program.ops)}


def _program(graph: object, *, training: bool = False) -> int:
    from predictor.features.graph import Graph
    from predictor.features.programs.program import build_program
    from predictor.types import Mode, Optimizer, Precision, Runtime

    assert isinstance(graph, Graph)
    program = build_program(
        graph,
        mode=Mode.TRAIN if training else Mode.INFER,
        precision=Precision.FP32,
        optimizer=Optimizer.ADAMW if training else Optimizer.NONE,
        runtime=Runtime.EAGER,
    )
    return len(program.ops)


_JOBS: dict[str, Callable[[Path], dict[str, float]]] = {
    "cold": _cold,
    "first": _first,
    "huge": _huge,
    "answer": _answer,
    "inline": _inline,
    "capture": _capture,
}


_ONCE = frozenset({"huge", "answer"})


def _measure(job: str, folder: Path, repeats: int = REPEATS) -> dict[str, float]:
    """Medians over fresh processes."""
    found: list[dict[str, float]] = []
    for _ in range(repeats):
        done = subprocess.run(
            [sys.executable, str(Path(__file__)), "--job", job, "--folder", str(folder)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        found.append(json.loads(done.stdout))
    return {key: median(item[key] for item in found) for key in found[0]}


def main() -> int:
    """Measures and prints; writes the record on request."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/graphs.md")
    parser.add_argument("--job", choices=sorted(_JOBS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(_JOBS[options.job](options.folder)))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        huge = mixed_model(_HUGE_NODES)
        (folder / "huge.onnx").write_bytes(huge.SerializeToString())
        write_inline(folder / "inline.onnx", mixed_model(1000), _TENSOR_BYTES, _INLINE_BYTES)
        results = {job: _measure(job, folder, 1 if job in _ONCE else REPEATS) for job in _JOBS}
    body = _report(results, len(huge.graph.node))
    print(body)
    if options.write:
        print(
            f"wrote {write('graphs', 'Reading graphs', 'python benchmarks/graphs.py --write', 'none', body)}"
        )
    return 0


def _report(found: dict[str, dict[str, float]], huge_nodes: int) -> str:
    cold, huge, inline, capture = (found[name] for name in ("cold", "huge", "inline", "capture"))

    def mib(size: float) -> str:
        return f"{size / _MIB:,.1f} MiB"

    rows = [
        (f"cold graph of {cold['nodes']:.0f} nodes: file to graph", f"{cold['read_s'] * 1e3:.0f} ms", ""),
        ("the same, file to program (inference)", f"{cold['all_s'] * 1e3:.0f} ms", "<= 100 ms"),
        (
            "the same as the first of a process, imports included",
            f"{found['first']['all_s'] * 1e3:.0f} ms",
            "",
        ),
        (
            f"graph of {huge_nodes:,} nodes ({mib(huge['bytes'])}): file to graph",
            f"{huge['read_s']:.1f} s",
            "",
        ),
        ("the same, file to program (inference)", f"{huge['all_s']:.1f} s", "<= 15 s"),
        ("the same, file to program (training)", f"{huge['train_s']:.1f} s", "<= 15 s"),
        (
            "the same, file to time, memory and energy (training)",
            f"{found['answer']['all_s']:.1f} s",
            "<= 15 s",
        ),
        ("memory of reading it, above an idle process", mib(huge["read_peak_bytes"]), ""),
        ("memory of reading and program", mib(huge["peak_bytes"]), ""),
        (f"file of {inline['bytes'] / 1e9:.2f} GB with inline weights", f"{inline['read_s']:.2f} s", ""),
        ("its structure without weights", mib(inline["structure_bytes"]), ""),
        (
            "memory of reading it, above an idle process, at the peak",
            mib(inline["grown_peak_bytes"]),
            f"one pass: {mib(inline['bytes'] + 3 * inline['structure_bytes'])}",
        ),
        ("ResNet-50 by torch, training, first capture of a process", f"{capture['first_s']:.2f} s", "<= 1 s"),
        ("import of torch._dynamo, which the step needs, not in it", f"{capture['import_s']:.2f} s", ""),
        ("the same again", f"{capture['again_s']:.2f} s", "<= 1 s"),
    ]
    return (
        f"CPU time, medians of {REPEATS} fresh processes (the huge graph: one). Others were read before, "
        "so that rules and schemas are loaded; this one is new.\n\n"
        + table(("what", "measured", "goal"), rows)
    )


if __name__ == "__main__":
    raise SystemExit(main())
