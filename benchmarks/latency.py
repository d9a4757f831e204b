"""What one process costs: imports, `perfcast --help`, repeated and cold requests, memory.

    python benchmarks/latency.py [--write]

CPU time, not wall time: the machine may be busy with other work. Cold figures come from fresh processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from record import ROOT, percentile, process_status, table, write

REPEATS = 7
# Of 19 nodes each: 1007 nodes.
if TYPE_CHECKING:
    from predictor.api import Predictor

_LAYERS = 53


_HELP = """
import sys
from predictor.cli.main import main
sys.argv = ["perfcast", "--help"]
try:
    main()
except SystemExit:
    pass
"""


_REPORT = """
import resource, sys
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, file=sys.stderr)
"""


def child_cpu_s(code: str) -> float:
    """Median CPU seconds of a fresh interpreter that runs `code`, start-up included."""
    script = f"{code}\n{_REPORT}"
    samples = []
    for _ in range(REPEATS):
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
        )
        samples.append(float(done.stderr.strip().splitlines()[-1]))
    return median(samples)


def cpu_samples_s(ask: Callable[[], object], count: int) -> list[float]:
    """CPU seconds of each of `count` calls in this thread."""
    samples = []
    for _ in range(count):
        start_s = time.thread_time()
        ask()
        samples.append(time.thread_time() - start_s)
    return samples


def decoder(layers: int = _LAYERS, width: int = 256) -> bytes:
    """A chain of attention blocks, 19 nodes each, as an exporter writes them; weights stripped."""
    from onnx import TensorProto, helper

    from predictor.features.reading.strip import strip_model

    nodes, weights = [], []

    def weight(name: str, *shape: int) -> str:
        tensor = TensorProto(name=name, dims=shape, data_type=TensorProto.FLOAT)
        # A file that does not exist: the payload is not needed, and would count as this process's memory.
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="absent.bin")
        weights.append(tensor)
        return name

    def node(op_type: str, *inputs: str) -> str:
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(op_type, list(inputs), [name], f"n{len(nodes)}"))
        return name

    value = "x"
    half = weight("half", 1)
    for index in range(layers):
        scale, shift = weight(f"scale{index}", width), weight(f"shift{index}", width)
        normal = node("LayerNormalization", value, scale, shift)
        query, key, content = (
            node("Add", node("MatMul", normal, weight(f"w{kind}{index}", width, width)), shift)
            for kind in "qkv"
        )
        turned = node("Transpose", key)
        nodes[-1].attribute.append(helper.make_attribute("perm", [0, 2, 1]))
        scores = node("Softmax", node("Mul", node("MatMul", query, turned), half))
        mixed = node("MatMul", node("MatMul", scores, content), weight(f"wo{index}", width, width))
        value = node("Add", value, mixed)
        wide = node("MatMul", value, weight(f"up{index}", width, 4 * width))
        gate = node("Sigmoid", wide)
        value = node(
            "Add", value, node("MatMul", node("Mul", wide, gate), weight(f"down{index}", 4 * width, width))
        )
    graph = helper.make_graph(
        nodes,
        "decoder",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 128, width])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, ["batch", 128, width])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return strip_model(model.SerializeToString())


def _in_process() -> dict[str, object]:
    """All figures of a process that predicts; runs in a fresh interpreter."""
    from predictor.api import Predictor
    from predictor.request import PredictionRequest

    start_s = time.process_time()
    predictor = Predictor.load()
    load_s = time.process_time() - start_s
    example = str(ROOT / "examples" / "gpt2.onnx")
    start_s = time.process_time()
    predictor.predict(PredictionRequest(example, "a100-pcie-40gb", batch=4, mode="train"))
    first_s = time.process_time() - start_s

    def repeat() -> object:
        return predictor.predict(PredictionRequest(example, "a100-pcie-40gb", batch=4, mode="train"))

    repeats = cpu_samples_s(repeat, 5000)
    sizes = iter(range(5, 10**9))

    def new_batch() -> object:
        return predictor.predict(
            PredictionRequest(example, "a100-pcie-40gb", batch=next(sizes), mode="train")
        )

    batches = cpu_samples_s(new_batch, 20)
    caps = iter(range(150, 10**9))

    def new_cap() -> object:
        request = PredictionRequest(example, "a100-pcie-40gb", batch=4, power_limit_w=next(caps))
        return predictor.predict(request)

    new_cap()
    capped = cpu_samples_s(new_cap, 200)
    plans_per_s = _plans_per_s(predictor, example)
    models = [decoder(_LAYERS, 256 + 8 * index) for index in range(REPEATS)]
    waiting = iter(models)

    def new_graph() -> object:
        return predictor.predict(PredictionRequest(next(waiting), "a100-pcie-40gb", batch=1))

    cold = cpu_samples_s(new_graph, REPEATS)
    from predictor.features.reading.reader import read_graph

    read = cpu_samples_s(lambda: read_graph(models[0], batch=1), REPEATS)
    return {
        "bundle": predictor.bundle_id,
        "load_s": load_s,
        "first_s": first_s,
        "repeat_p50_s": percentile(repeats, 0.5),
        "repeat_p99_s": percentile(repeats, 0.99),
        "new_batch_s": median(batches),
        "new_cap_s": median(capped),
        "plans_per_s": plans_per_s,
        "cold_s": median(cold),
        "cold_read_s": median(read),
        "cold_nodes": 19 * _LAYERS,
        "cold_bytes": len(models[0]),
        "resident_bytes": process_status(os.getpid())["resident_bytes"],
    }


def _plans_per_s(predictor: Predictor, example: str) -> float:
    """New plans of one graph in one call, its costs memoised: eight replicas, another bucket size each."""
    from predictor.parallel.plan import Plan
    from predictor.request import PredictionRequest

    def requests(first: int) -> list[PredictionRequest]:
        return [
            PredictionRequest(
                example,
                "a100-sxm-40gb",
                batch=32,
                mode="train",
                plan=Plan(dp=8, bucket_bytes=2**20 + first + index),
            )
            for index in range(500)
        ]

    predictor.predict_many(requests(0))
    asked = requests(500)
    start_s = time.process_time()
    predictor.predict_many(asked)
    return len(asked) / (time.process_time() - start_s)


def main() -> int:
    """Measures and prints; writes the record on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/latency.md")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_in_process()))
        return 0
    starts_s = {
        "interpreter alone": child_cpu_s("pass"),
        "`import predictor`": child_cpu_s("import predictor"),
        "`import predictor.request`": child_cpu_s("import predictor.request"),
        "`import predictor.client`": child_cpu_s("import predictor.client"),
        "`perfcast --help`": child_cpu_s(_HELP),
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), "--child"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    body = _report(starts_s, found)
    print(body)
    if options.write:
        command = "python benchmarks/latency.py --write"
        print(
            f"wrote {write('latency', 'Latency: imports, requests, memory', command, found['bundle'], body)}"
        )
    return 0


def _report(starts_s: dict[str, float], found: dict[str, float]) -> str:
    def ms(value_s: float) -> str:
        return f"{value_s * 1e3:.3g} ms"

    kib = found["cold_bytes"] / 1024
    rows = [
        *((name, ms(value_s), "<= 150 ms" if "help" in name else "") for name, value_s in starts_s.items()),
        ("load the bundle", ms(found["load_s"]), ""),
        ("first request (GPT-2, training)", ms(found["first_s"]), ""),
        ("repeated request, p50", ms(found["repeat_p50_s"]), "<= 0.5 ms"),
        ("repeated request, p99", ms(found["repeat_p99_s"]), "<= 3 ms"),
        ("same graph, new power cap", ms(found["new_cap_s"]), ""),
        (
            "new plans of one graph, in one call",
            f"{found['plans_per_s']:,.0f} per CPU second",
            ">= 100,000 per second",
        ),
        ("same file, new batch", ms(found["new_batch_s"]), ""),
        (f"new graph of {found['cold_nodes']} nodes, {kib:.0f} KiB", ms(found["cold_s"]), "<= 100 ms"),
        ("of that, file to graph", ms(found["cold_read_s"]), ""),
        ("resident memory of the process", f"{found['resident_bytes'] / 2**20:.0f} MiB", "<= 500 MiB"),
    ]
    return "CPU time, medians; interpreter start-up included in the first five rows.\n\n" + table(
        ("what", "measured", "budget"), rows
    )


if __name__ == "__main__":
    raise SystemExit(main())
