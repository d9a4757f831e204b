"""Runs the rules over a graph's nodes, once per distinct signature.

A signature is all that a rule can see (op, attributes, types, constants, which inputs are weights or need a
gradient), so equal nodes of any names share one evaluation.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from predictor.errors import InvalidGraph
from predictor.features.graph import Attribute, Graph, Node, Value
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import Backward, BackwardRule, WorkRule, unknown_backward, unknown_work
from predictor.features.programs.work import IMAGE_CONVERSION, Family, OpInstance, OpWork, Phase
from predictor.registry import Registry
from predictor.types import Precision


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What the rules say of one signature; value names are positional (`in0`, `out0`).

    Attributes:
        forward: forward works.
        backward: what the gradient asks, None where no gradient passes.
        covered, backward_covered: False where the fallback answered.
        workspace_bytes, backward_workspace_bytes: operands of the largest convolution in either direction.
        temporary_bytes, backward_temporary_bytes: what its kernels hand to one another, beside the results.
        inner: the ops of a body, all its trips; they are the node's forward ops then.
        missing: ops in a body that no rule knows, gradients included.
    """

    forward: tuple[OpWork, ...]
    backward: Backward | None
    covered: bool
    backward_covered: bool
    workspace_bytes: int
    backward_workspace_bytes: int
    temporary_bytes: int = 0
    backward_temporary_bytes: int = 0
    inner: tuple[OpInstance, ...] = ()
    missing: tuple[str, ...] = ()

    def ops(self, node: Node) -> tuple[OpInstance, ...]:
        """Forward ops of `node`, which has this signature."""
        if self.inner:
            return self.inner
        return tuple(OpInstance(work, node.name, node.op_type, self.covered) for work in self.forward)

    def uncovered(self, node: Node) -> tuple[str, ...]:
        """Names of what no rule knows: ops in its body, `node` itself or its gradient."""
        name = f"{node.domain or 'ai.onnx'}::{node.op_type}"
        if self.missing:
            return self.missing
        if not self.covered:
            return (name,)
        return () if self.backward_covered else (f"gradient of {name}",)


class RuleEvaluator:
    """Evaluates nodes of one graph under one job, remembering every signature."""

    def __init__(
        self,
        graph: Graph,
        work_rules: Registry[WorkRule],
        backward_rules: Registry[BackwardRule],
        *,
        precision: Precision,
        training: bool,
        weights: frozenset[str] | set[str],
        needs_gradient: frozenset[str] | set[str],
    ) -> None:
        self._graph = graph
        self._rules = work_rules, backward_rules
        self._precision = precision
        self._training = training
        self._weights = weights
        self._needs_gradient = needs_gradient
        self._type_ids: dict[Hashable, int] = {}
        self._value_keys: dict[str, Hashable] = {"": None}
        self._known: dict[Hashable, Evaluated] = {}

    def __call__(self, node: Node) -> Evaluated:
        """The evaluation of `node`. Raises InvalidGraph when a rule cannot make sense of its operands."""
        signature = self.signature(node)
        found = self._known.get(signature)
        if found is None:
            try:
                found = self._evaluate(node)
            except InvalidGraph as error:
                raise InvalidGraph(f"node {node.name!r}: {error.message}", node=node.name) from None
            except (ArithmeticError, IndexError, KeyError, TypeError, ValueError) as error:
                shapes = ", ".join(str(self._graph.values[name].shape) for name in node.inputs if name)
                raise InvalidGraph(
                    f"node {node.name!r}: the rule of {node.op_type} cannot price inputs of shapes "
                    f"{shapes} ({error}); check the model with onnx.checker",
                    node=node.name,
                ) from error
            self._known[signature] = found
        return found

    def of_body(self, body: Graph, needs_gradient: set[str], weights: set[str]) -> RuleEvaluator:
        """An evaluator of a body under the same job."""
        work_rules, backward_rules = self._rules
        return RuleEvaluator(
            body,
            work_rules,
            backward_rules,
            precision=self._precision,
            training=self._training,
            weights=weights,
            needs_gradient=needs_gradient,
        )

    @property
    def training(self) -> bool:
        """True when there is a backward pass."""
        return self._training

    def wants_gradient(self, name: str) -> bool:
        """True when the value's gradient is asked for."""
        return name in self._needs_gradient

    def _value_key(self, name: str) -> Hashable:
        value = self._graph.values[name]
        # Hashing an enumeration's member is slow; there is one object per member.
        type_id = self._type_ids.setdefault((value.shape, id(value.dtype)), len(self._type_ids))
        flags = (name in self._weights) + 2 * (name in self._needs_gradient)
        constant = self._graph.constants.get(name)
        key: Hashable = 4 * type_id + flags if constant is None else (4 * type_id + flags, constant)
        self._value_keys[name] = key
        return key

    def signature(self, node: Node) -> Hashable:
        """What tells `node` from others for a rule; equal signatures, equal answers."""
        keys = self._value_keys
        inputs = node.inputs
        parts = [keys[name] if name in keys else self._value_key(name) for name in inputs]
        parts += [keys[name] if name in keys else self._value_key(name) for name in node.outputs]
        # Which inputs are the same value matters only where one repeats.
        repeats = None
        if len(inputs) > 1 and len(set(inputs)) != len(inputs):
            repeats = tuple(inputs.index(name) for name in inputs)
        return node.op_type, node.domain, len(inputs), tuple(parts), _attributes_key(node.attributes), repeats

    def _evaluate(self, node: Node) -> Evaluated:
        work_rules, backward_rules = self._rules
        opset = self._graph.opsets.get(node.domain, 1)
        view = self.view(node)
        rule = work_rules.get(node.domain, node.op_type, opset)
        body = node.attributes.get("body")
        if rule is None and isinstance(body, Graph):
            from predictor.features.programs.bodies import evaluate_body

            return evaluate_body(self, node, body)
        forward = rule(view) if rule else unknown_work(view)
        backward, covered = None, True
        if view.needs_gradient:
            backward_rule = backward_rules.get(node.domain, node.op_type, opset)
            backward = backward_rule(view) if backward_rule else unknown_backward(view)
            covered = backward_rule is not None
        results = sum(value.size_bytes for value in view.present_outputs)
        extra = backward.saved_extra_bytes if backward else 0
        return Evaluated(
            forward=tuple(work.in_phase(Phase.FORWARD) for work in forward),
            backward=backward,
            covered=rule is not None,
            backward_covered=covered,
            workspace_bytes=_convolution_bytes(forward),
            backward_workspace_bytes=_convolution_bytes(backward.works if backward else ()),
            temporary_bytes=_temporaries(forward, results, extra),
            backward_temporary_bytes=_backward_temporaries(backward, view) if backward else 0,
        )

    def view(self, node: Node) -> OpView:
        """`node` as its rules see it."""
        position = {name: f"in{index}" for index, name in reversed(list(enumerate(node.inputs)))}
        values = self._graph.values

        def renamed(name: str, new_name: str) -> Value | None:
            return Value(new_name, values[name].shape, values[name].dtype) if name else None

        return OpView(
            domain=node.domain,
            op_type=node.op_type,
            attributes=node.attributes,
            inputs=tuple(renamed(name, position[name]) for name in node.inputs),
            outputs=tuple(renamed(name, f"out{index}") for index, name in enumerate(node.outputs)),
            opset=self._graph.opsets.get(node.domain, 1),
            constants=tuple(self._graph.constants.get(name) for name in node.inputs),
            weights=tuple(name in self._weights for name in node.inputs),
            precision=self._precision,
            training=self._training,
            needs_gradient=frozenset(position[name] for name in node.inputs if name in self._needs_gradient),
        )


def _backward_temporaries(backward: Backward, view: OpView) -> int:
    if backward.temporary_bytes is not None:
        return backward.temporary_bytes
    wanted = {value.name: value.size_bytes for value in view.present_inputs}
    results = sum(size for name, size in wanted.items() if name in view.needs_gradient)
    return _temporaries(backward.works, results, 0)


def _temporaries(works: Sequence[OpWork], result_bytes: int, kept_bytes: int) -> int:
    """What a row of kernels writes beyond its results and what is kept: one or two of them at a time."""
    # Converted images live in the workspace of their convolution.
    written = [work.write_bytes for work in works if work.kind != IMAGE_CONVERSION]
    if len(written) < _FIRST_WITH_TEMPORARIES:
        return 0
    return max(0, min(sum(written) - result_bytes - kept_bytes, 2 * max(written)))


_FIRST_WITH_TEMPORARIES = 2


def _convolution_bytes(works: Iterable[OpWork]) -> int:
    """Operands of the largest convolution: libraries take workspace in proportion to them."""
    return max(
        (work.moved_bytes - work.parameter_bytes for work in works if work.family is Family.CONVOLUTION),
        default=0,
    )


def actual_name(node: Node, positional: str) -> str:
    """The graph's name of a view's `in3` or `out0`."""
    if positional.startswith("in"):
        return node.inputs[int(positional[2:])]
    return node.outputs[int(positional[3:])]


def _attributes_key(attributes: Mapping[str, Attribute]) -> Hashable:
    # A body is told apart by its identity: it lives as long as the graph that holds it.
    if not attributes:
        return None
    items = [(name, id(value) if isinstance(value, Graph) else value) for name, value in attributes.items()]
    return tuple(sorted(items))
