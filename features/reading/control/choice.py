"""If: the branch that its condition or the caller names, else the costlier one, with a note."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import GraphProto

from predictor.errors import InvalidInput
from predictor.features.reading.body_weights import weights_of
from predictor.features.reading.branches import Opened, aliases, open_body
from predictor.features.reading.control.walker import CONTROL_RULES, OPENING_LIMIT, Walker, label_of
from predictor.features.reading.structure import Call
from predictor.features.reading.typed_model import TypedCall


@CONTROL_RULES.register("", "If")
def _if(walk: Walker, call: Call, attributes: Mapping[str, Any]) -> list[TypedCall] | None:
    branches = {
        key: body
        for key in ("then_branch", "else_branch")
        if isinstance(body := attributes.get(key), GraphProto) and len(body.output) >= len(call.outputs)
    }
    names = {call.node.name, *call.outputs}
    chosen, is_certain = _named_branch(walk, call, names)
    if chosen is not None and chosen not in branches:
        return None
    prefix = walk.prefix(call)

    def keep_all_but(taken: str) -> None:
        # The next iteration may go the other way: its weights are on the device too.
        for key, body in branches.items():
            if key != taken:
                walk.keep(weights_of(body), f"{prefix}{key}/kept/")

    if chosen is not None:
        if not is_certain:
            keep_all_but(chosen)
        opened = open_body(branches[chosen], prefix)
        return [*walk.enter(opened), *walk.walk(aliases(opened.outputs, call.outputs, prefix))]
    typed: dict[str, tuple[float, list[TypedCall], Opened]] = {}
    failures: list[InvalidInput] = []
    for key, body in branches.items():
        opened = open_body(body, f"{prefix}{key}/")
        try:
            calls = walk.enter(opened)
        except InvalidInput as error:
            if error.metadata.get("limit") == OPENING_LIMIT:
                raise
            # A branch for other shapes than these cannot be taken.
            failures.append(error)
            continue
        cost = walk.cost(calls)
        typed[key] = (-1.0 if cost is None else cost, calls, opened)
    if not typed:
        if failures:
            raise failures[0]
        return None
    key = max(typed, key=lambda name: typed[name][0])
    _, calls, opened = typed[key]
    keep_all_but(key)
    if not failures:
        walk.note(
            "BRANCH_ASSUMED",
            f"{call.label}: its condition depends on data; the costlier {key} is priced; "
            f"--dim {label_of(call)}.then_branch=1 or .else_branch=1 chooses",
        )
    return [*calls, *walk.walk(aliases(opened.outputs, call.outputs, prefix))]


def _named_branch(walk: Walker, call: Call, names: set[str]) -> tuple[str | None, bool]:
    """The branch that the caller or the condition names, and whether it is the same in every iteration."""
    if not names.isdisjoint(walk.hints.then_branches):
        return "then_branch", False
    if not names.isdisjoint(walk.hints.else_branches):
        return "else_branch", False
    condition = walk.contents.get(call.inputs[0]) if call.inputs else None
    if condition is None or condition.size != 1:
        return None, False
    return ("then_branch" if bool(condition.ravel()[0]) else "else_branch"), True
