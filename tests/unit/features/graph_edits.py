"""Changes to ONNX models that must, or must not, change what is read from them."""

from __future__ import annotations

import random

from onnx import ModelProto


def renamed(data: bytes, seed: int) -> bytes:
    """The same model under other names, with independent nodes and weights in another order."""
    model = ModelProto.FromString(data)
    graph = model.graph
    generator = random.Random(seed)
    names = {info.name for info in (*graph.input, *graph.output, *graph.initializer, *graph.value_info)}
    names.update(name for node in graph.node for name in (*node.input, *node.output) if name)
    fresh = list(range(len(names)))
    generator.shuffle(fresh)
    new = {name: f"v{number}" for name, number in zip(sorted(names), fresh, strict=True)} | {"": ""}
    graph.name = f"renamed {seed}"
    for info in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        info.name = new[info.name]
    ready = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer} | {""}
    waiting = []
    for index, node in enumerate(graph.node):
        node.name = f"n{seed}_{index}"
        node.input[:] = [new[name] for name in node.input]
        node.output[:] = [new[name] for name in node.output]
        waiting.append(node)
    ordered = []
    while waiting:
        choices = [node for node in waiting if ready.issuperset(node.input)]
        chosen = generator.choice(choices)
        waiting.remove(chosen)
        ready.update(chosen.output)
        ordered.append(chosen)
    copies = [type(node).FromString(node.SerializeToString()) for node in ordered]
    del graph.node[:]
    graph.node.extend(copies)
    weights = list(graph.initializer)
    generator.shuffle(weights)
    kept = [type(tensor).FromString(tensor.SerializeToString()) for tensor in weights]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return bytes(model.SerializeToString())
