"""Every model of ONNX's own backend tests, and how each of ONNX's operators is covered (G1).

python benchmarks/onnx_node_tests.py [--write]
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

from record import ROOT, write

from predictor.evaluation.onnx_node_tests import (
    Case,
    check_case,
    node_test_rows,
    node_test_tables,
    read_cases,
)
from predictor.evaluation.op_coverage import coverage_tables, op_coverage

GOLDEN = ROOT / "tests" / "unit" / "features" / "ops" / "golden"

NOTES = """\
{count} models: the node tests that the onnx package builds in memory, and the model files that it
ships. *As it is* is what `perfcast graph check` does with the file. A model whose sizes stand in an
integer input (the `size` of an AffineGrid) is refused with an error that says so, and read with
`--dim INPUT[0]=N`; the test's own numbers are given then. *Declared shapes removed* reads the same
models without the output shapes that the files state, which shows what is derived.

*Depend on data*: how many items a sequence has, how many elements Unique finds, how often a loop
runs. The answer carries a note that names the size taken and the flag that changes it.

Refused without declared shapes: pictures of unknown size (ImageDecoder), pieces of unknown number
(StringSplit), scales that are no whole numbers (Resize), limits of a type that numpy lacks (Range in
bfloat16).

Operators. *Own rule* counts FLOPs and bytes by a registered rule; each has a golden case derived by
hand (tests/unit/features/ops/golden). If, Loop, Scan and SequenceMap are priced by their bodies:
the branch that is taken (the costlier one where that depends on data), the trips by constants, by
`--dim NODE.trip_count=N`, or 1, with a note. Functions are opened into their ONNX bodies. Ops
without a gradient rule (integers, flags, indices, strings, classical models, contrib ops of
inference) are priced in training as twice their forward bytes, which a warning says."""


def golden_cases() -> set[tuple[str, str]]:
    """(domain, op) of every golden case."""
    found = set()
    for path in GOLDEN.glob("*.toml"):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        found.update((case.get("domain", content.get("domain", "")), case["op"]) for case in content["cases"])
    return found


def ops_in(cases: list[Case]) -> set[str]:
    """Op types of all nodes, those in bodies included."""
    found: set[str] = set()
    pending = [case.model.graph for case in cases]
    while pending:
        for node in pending.pop().node:
            found.add(node.op_type)
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    pending.append(attribute.g)
    return found


def main() -> int:
    """Reads everything; 1 when a model is not read or a static shape differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/onnx-node-tests.md")
    options = parser.parse_args()
    cases = read_cases()
    checked = [check_case(case) for case in cases]
    rows = node_test_rows(checked)
    for row in rows:
        print(f"{row.id} {row.group} {row.metric}: {row.value:.4g} (goal {row.goal}, n {row.n})")
    if options.write:
        import onnx

        coverage = op_coverage()
        unread = {item.op_type for item in coverage if item.since} - ops_in(cases)
        tables = [*node_test_tables(checked), *coverage_tables(coverage, golden_cases(), unread)]
        scores = "\n".join(
            f"- {row.id}, suite `{row.suite}`: `{row.metric}` {row.value:.3g}, goal {row.goal}, n {row.n}"
            for row in rows
            if row.group.endswith("all")
        )
        body = "\n\n".join(
            [
                f"- onnx {onnx.__version__}\n{scores}",
                NOTES.format(count=len(cases)),
                *(table.markdown() for table in tables),
            ]
        )
        path: Path = write(
            "onnx-node-tests",
            "ONNX backend tests and operator coverage",
            "benchmarks/onnx_node_tests.py --write",
            "none",
            body,
        )
        print(f"wrote {path}")
    bad = [row for row in rows if row.metric in ("unread", "crashed", "shapes_differ") and row.value > 0]
    return int(bool(bad))


if __name__ == "__main__":
    raise SystemExit(main())
