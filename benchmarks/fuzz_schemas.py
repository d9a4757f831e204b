"""Fuzzes ONNX's own inference rules, one operator at a time: what ends the process must be caught before it.

    python benchmarks/fuzz_schemas.py [--nodes 2000] [--seed N]

Every rule of every version gets nodes with random operands, constants and attributes, in a child process with
a limit on memory. A finding is the death of the child or an exception that is no NodeTypeError; exit code 1.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
from collections.abc import Mapping
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
from onnx import NodeProto, defs, helper

from predictor.features.reading.onnx_inference import NodeTypeError, infer_outputs
from predictor.features.reading.tensor_type import TensorType

MEMORY_LIMIT_BYTES = 3 * 2**30
_INTEGERS = (-(2**31), -100, -7, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 100, 2**31 - 1, 2**31, 2**40)
_ELEMENTS = (-2, -1, 0, 1, 2, 3, 4, 5, 9, 2**33)
_WORDS = (
    "",
    "NOTSET",
    "SAME_UPPER",
    "VALID",
    "ij,jk->ik",
    "...",
    "ii->i",
    "linear",
    "bidirectional",
    "reverse",
)
_DTYPES: Mapping[int, Any] = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_}
_RAISED = 2**32 - 1


def random_node(schema: Any, rng: Random) -> tuple[NodeProto, dict[str, TensorType], dict[str, Any]]:
    """A node of that operator, types of its operands, contents of some."""
    names = [f"i{k}" if rng.random() < 0.93 else "" for k in range(rng.randint(0, min(schema.max_input, 7)))]
    outputs = rng.randint(1, min(max(1, schema.max_output), 6) + (rng.random() < 0.2))
    types = {name: _type(rng) for name in names if name}
    contents = {}
    for name, known in types.items():
        dtype, shape = _DTYPES.get(known.elem_type), known.shape
        if dtype is not None and shape is not None and len(shape) <= 1 and rng.random() < 0.5:
            values = [rng.choice(_ELEMENTS) for _ in range(int(np.prod(shape)))]
            contents[name] = np.array(values, dtype=np.int64).reshape(shape).astype(dtype)
    given = {
        name: _attribute(kind.type, rng) for name, kind in schema.attributes.items() if rng.random() < 0.6
    }
    attributes = {name: value for name, value in given.items() if value not in (None, [])}
    node = helper.make_node(
        schema.name, names, [f"o{k}" for k in range(outputs)], domain=schema.domain, **attributes
    )
    return node, types, contents


def _type(rng: Random) -> TensorType:
    elem_type = rng.choice((1, 1, 1, 7, 7, 6, 9, 8, 10, 0, 2, 3))
    if rng.random() < 0.05:
        return TensorType(elem_type, None)
    rank = rng.choice((0, 1, 1, 1, 2, 2, 3, 4, 4, 5))
    return TensorType(elem_type, tuple(rng.choice((0, 1, 1, 2, 3, 4, 5, None)) for _ in range(rank)))


def _attribute(kind: Any, rng: Random) -> Any:
    types = defs.OpSchema.AttrType
    if kind == types.INT:
        return rng.choice(_INTEGERS)
    if kind == types.INTS:
        return [rng.choice(_INTEGERS) for _ in range(rng.randint(0, 5))]
    if kind == types.FLOAT:
        return rng.choice((0.0, 1.0, -1.0, 0.5, float("nan")))
    if kind == types.FLOATS:
        return [rng.choice((0.0, 1.0, 2.0, -1.0)) for _ in range(rng.randint(0, 4))]
    if kind == types.STRING:
        return rng.choice(_WORDS)
    if kind == types.STRINGS:
        return [rng.choice(("", "a")) for _ in range(rng.randint(0, 3))]
    if kind == types.TENSOR:
        return helper.make_tensor("t", rng.choice((1, 6, 7)), [2], [1, 2])
    return None


def try_rule(schema: Any, seed: int, nodes: int) -> list[str]:
    """Findings of one rule; after a death the next node goes on."""
    findings: list[str] = []
    number = 0
    while number < nodes:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            _try_nodes(schema, seed, range(number, nodes), writer)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            data = stream.read()
        status = os.waitpid(child, 0)[1]
        seen = [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]
        label = f"{schema.domain or 'ai.onnx'} {schema.name} {schema.since_version}, seed {seed}, node"
        findings += [f"{label} {at}: exception" for at, mark in pairwise(seen) if mark == _RAISED]
        if status == 0:
            break
        number = [at for at in seen if at != _RAISED][-1]
        findings.append(f"{label} {number}: the process died (status {status})")
        number += 1
    return findings


def _try_nodes(schema: Any, seed: int, numbers: range, pipe: int) -> None:
    """In the child: writes each number before it is tried, and a mark after an exception."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    for number in numbers:
        os.write(pipe, number.to_bytes(4, "little"))
        rng = Random(f"{schema.domain}:{schema.name}:{schema.since_version}:{seed}:{number}")
        node, types, contents = random_node(schema, rng)
        try:
            infer_outputs(node, schema.since_version, types, contents)
        except NodeTypeError:
            pass
        except Exception:  # That is what is looked for.
            os.write(pipe, _RAISED.to_bytes(4, "little"))
    os._exit(0)


def main() -> int:
    """Runs over all rules; 1 when one of them ends the process or raises something else."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=2000, help="nodes per rule")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    schemas = [s for s in defs.get_all_schemas_with_history() if s.has_type_and_shape_inference_function]
    findings = [line for schema in schemas for line in try_rule(schema, options.seed, options.nodes)]
    for line in findings:
        print(line, file=sys.stderr)
    print(f"{len(schemas)} rules, {options.nodes} nodes each, {len(findings)} findings")
    return int(bool(findings))


if __name__ == "__main__":
    raise SystemExit(main())
