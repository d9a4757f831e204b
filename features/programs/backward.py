"""The backward pass: gradient ops in reverse order, and when each parameter's gradient is complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from predictor.features.graph import IN_PLACE, Graph, Node, Value
from predictor.features.ops.collectives import GATHERS_AGAIN
from predictor.features.programs.evaluate_rules import Evaluated, actual_name
from predictor.features.programs.gradient_strides import GradientStrides
from predictor.features.programs.liveness import MemoryStep, Part, Step, gradient_bytes
from predictor.features.programs.op_view import element_bits, vector_compute
from predictor.features.programs.rules import Backward
from predictor.features.programs.work import Elements, Family, OpInstance, OpWork, ParameterGradient, Phase

_SEED_NODE = "loss"
# Op type of the copies that predictor.features.lowering.layout inserts.
_COPY = "Contiguous"


@dataclass(frozen=True, slots=True)
class BackwardStep:
    """One node's place in the backward pass."""

    gradients: tuple[str, ...]
    passes: tuple[str, ...]
    saves: tuple[str, ...]
    extra_bytes: int
    temporary_bytes: int = 0


class BackwardPass:
    """Emits backward ops in reverse order along the paths that carry a gradient."""

    def __init__(
        self, graph: Graph, nodes: list[Node], evaluated: list[Evaluated], needs_gradient: set[str]
    ) -> None:
        self._graph = graph
        self._nodes = nodes
        self._evaluated = evaluated
        self._needs_gradient = needs_gradient
        self._gathered = {node.outputs[0] for node in nodes if GATHERS_AGAIN in node.attributes}
        self._made_by = (
            {name: index for index, node in enumerate(nodes) for name in node.outputs}
            if self._gathered
            else {}
        )
        self._additions: dict[str, OpWork] = {}
        self._steps: dict[int, BackwardStep] = {}
        self.seeds: frozenset[str] = frozenset()
        self.order: tuple[Step, ...] = tuple(Step(Part.FORWARD, index) for index in range(len(nodes)))
        """What runs when: forward and, once `run` is done, backward with its replays and the step."""
        self.ready: dict[str, int] = {}
        """Index of the op that completes each parameter's gradient."""

    def run(self, ops: list[OpInstance], replays: Sequence[Sequence[int]] = ()) -> None:
        """Appends the backward ops to `ops`.

        Args:
            replays: runs of nodes, ascending, that forward keeps nothing of: all of a run is computed again
                before the backward step of its last node.
        """
        arrived = self._seed(ops)
        self.seeds = frozenset(arrived)
        strides = GradientStrides(self._graph)
        again: Mapping[int, Sequence[int]] = {run[-1]: run for run in replays if run}
        order = list(self.order)
        for index in range(len(self._nodes) - 1, -1, -1):
            node, found = self._nodes[index], self._evaluated[index]
            for other in again.get(index, ()):
                ops.extend(self._replayed(other))
                order.append(Step(Part.REPLAY, other))
            order.append(Step(Part.BACKWARD, index))
            backward = found.backward
            if backward is None or arrived.isdisjoint(node.outputs):
                continue
            copied = list(strides.before(node))
            ops.extend(OpInstance(work, node.name, _COPY) for work in copied)
            temporary_bytes = sum(work.write_bytes for work in copied)
            ops.extend(
                OpInstance(work, node.name, node.op_type, found.backward_covered) for work in backward.works
            )
            gradients = tuple(name for name in node.inputs if name in self._needs_gradient)
            for name in gradients:
                if name in arrived:
                    ops.append(OpInstance(self._addition(name), node.name, node.op_type))
                copies = list(strides.after(node, name, is_first=name not in arrived))
                ops.extend(OpInstance(work, node.name, _COPY) for work in copies)
                temporary_bytes += sum(work.write_bytes for work in copies)
                arrived.add(name)
                if name in self._graph.parameters:
                    self.ready[name] = len(ops) - 1
            self._steps[index] = BackwardStep(
                gradients,
                tuple(actual_name(node, name) for name in backward.passes),
                tuple(self._kept(actual_name(node, name), backward) for name in backward.saves),
                backward.saved_extra_bytes,
                temporary_bytes + found.backward_temporary_bytes,
            )
        self.order = (*order, Step(Part.OPTIMIZER, len(self._nodes)))

    def _replayed(self, index: int) -> list[OpInstance]:
        """A node's forward kernels, run once more inside backward."""
        node, found = self._nodes[index], self._evaluated[index]
        return [replace(op, work=op.work.in_phase(Phase.BACKWARD), replayed=True) for op in found.ops(node)]

    def _kept(self, name: str, backward: Backward) -> str:
        """What stays alive for `name`: the shard it is gathered from, the origin of a kernel's own copy."""
        if self._gathered and (shard := self._shard_of(name)) is not None:
            return shard
        index = self._graph.producer.get(name) if backward.copies_inside else None
        if index is None or self._graph.nodes[index].op_type != _COPY:
            return name
        return self._graph.nodes[index].inputs[0]

    def _shard_of(self, name: str) -> str | None:
        """The shard that is kept of a value (or of what it views) which backward gathers again."""
        while (index := self._made_by.get(name)) is not None:
            node = self._nodes[index]
            if name in self._gathered:
                return node.inputs[0]
            if self._evaluated[index].forward or not node.inputs:
                return None
            name = node.inputs[0]
        return None

    def _seed(self, ops: list[OpInstance]) -> set[str]:
        """Gradients of the outputs that nothing else reads (all outputs, if every one is read)."""
        names = [name for name in self._graph.outputs if name in self._needs_gradient]
        heads = [name for name in names if name not in self._graph.consumers] or names
        for name in heads:
            ops.append(OpInstance(_fill(self._graph.values[name]), _SEED_NODE, "seed"))
        return set(heads)

    def _addition(self, name: str) -> OpWork:
        found = self._additions.get(name)
        if found is None:
            found = self._additions[name] = _accumulate(self._graph.values[name])
        return found

    def gradients(self, *, wide: bool = False) -> tuple[ParameterGradient, ...]:
        """Parameter gradients in the order in which they become ready; `wide`: summed up in FP32."""
        values = self._graph.values
        ordered = sorted(self.ready.items(), key=lambda item: item[1])
        return tuple(
            ParameterGradient(name, gradient_bytes(values[name], wide=wide), index) for name, index in ordered
        )

    def memory_steps(self, cached_weights: set[str] | frozenset[str]) -> list[MemoryStep]:
        """What each node does to memory, in forward order."""
        nothing = BackwardStep((), (), (), 0)
        steps = []
        for index, (node, found) in enumerate(zip(self._nodes, self._evaluated, strict=True)):
            step = self._steps.get(index, nothing)
            steps.append(
                MemoryStep(
                    reads=node.inputs,
                    writes=node.outputs,
                    is_view=not found.forward or bool(node.attributes.get(IN_PLACE)),
                    gradients=step.gradients,
                    passes=step.passes,
                    saves=step.saves,
                    extra_bytes=step.extra_bytes,
                    temporary_bytes=found.temporary_bytes,
                    backward_temporary_bytes=step.temporary_bytes,
                    workspace_bytes=found.workspace_bytes,
                    backward_workspace_bytes=found.backward_workspace_bytes,
                    is_pinned=bool(cached_weights) and node.outputs[0] in cached_weights,
                )
            )
        return steps


def _elementwise(kind: str, value: Value, flops: int, reads: int) -> OpWork:
    return OpWork(
        family=Family.ELEMENTWISE,
        kind=kind,
        phase=Phase.BACKWARD,
        compute=vector_compute((value,)),
        shape=Elements(value.elements),
        element_bits=element_bits((value,)),
        matrix_flops=0,
        vector_flops=flops * value.elements,
        read_bytes=reads * value.size_bytes,
        write_bytes=value.size_bytes,
    )


def _accumulate(value: Value) -> OpWork:
    return _elementwise("add", value, 1, 2)


def _fill(value: Value) -> OpWork:
    return _elementwise("fill", value, 0, 0)
