"""The front door of sharding: a lowered graph and a plan in, the graph of one rank and its parameters out.

Sequences are split first (cp), then experts (ep), then tensors (tp): each pass takes the graph of one rank of
those before, so their exchanges add up by themselves.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from predictor.features.graph import Graph, Shape
from predictor.parallel.plan import Plan
from predictor.parallel.sharding.book import Book
from predictor.parallel.sharding.choose import Choice, choose
from predictor.parallel.sharding.experts import split_experts
from predictor.parallel.sharding.follow import Region
from predictor.parallel.sharding.layout import Split, is_exact
from predictor.parallel.sharding.realise import Realised, Wanted, realise
from predictor.parallel.sharding.registry import Axis
from predictor.parallel.sharding.regroup import with_sums_together
from predictor.parallel.sharding.sequence import positions
from predictor.types import CpKind, Notice
from predictor.units import format_bytes

NOT_SPLIT = "NOT_SPLIT"
"""Code of the notice about what runs whole on every rank."""
_STEPS_BACK = 12
PADDED = "PADDED"
"""Code of the notice about dimensions that were padded to divide."""
ASSUMED = "SHARDING_ASSUMED"
"""Code of the notice about how the rest was split."""


@dataclass(frozen=True, slots=True)
class ParameterShard:
    """One parameter on one rank.

    Attributes:
        shape, local_shape: whole, and on a rank.
        splits: groups whose ranks hold different parts, and how they are cut. `ep` among them: an expert's,
            whose gradient is averaged over `expert_dp` instead of `dp`.
        partial_over: groups whose ranks each hold a part of the gradient's sum, to be all-reduced besides dp.
    """

    shape: Shape
    local_shape: Shape
    splits: tuple[tuple[str, Split], ...] = ()
    partial_over: tuple[str, ...] = ()

    @property
    def split_over(self) -> tuple[str, ...]:
        """Groups whose ranks hold different parts."""
        return tuple(group for group, _ in self.splits)


@dataclass(frozen=True, slots=True)
class Sharding:
    """The graph of one rank, its parameters by name, and what to know (also in `graph.notes`)."""

    graph: Graph
    parameters: Mapping[str, ParameterShard]
    notes: tuple[Notice, ...] = ()


def shard(graph: Graph, plan: Plan, *, training: bool) -> Graph:
    """The graph of one rank of `plan`; `graph` itself where the plan splits nothing. See `sharding`."""
    return sharding(graph, plan, training=training).graph


def sharding(graph: Graph, plan: Plan, *, training: bool) -> Sharding:
    """Splits a graph over the tp, cp and ep ranks of a plan.

    Args:
        graph: lowered (features/lowering/lower.py), before a compiler groups it, and bound to the
            samples of one microbatch of one replica.
        training: whether gradients flow, so that their exchanges count.
    """
    if not plan.splits_graph:
        shapes = {name: graph.values[name].shape for name in graph.parameters}
        return Sharding(graph, {name: ParameterShard(shape, shape) for name, shape in shapes.items()})
    local, notes = graph, []
    split: dict[str, list[tuple[str, Split]]] = {name: [] for name in graph.parameters}
    partial: dict[str, list[str]] = {name: [] for name in graph.parameters}
    for group, parts in (("cp", plan.cp), ("ep", plan.ep), ("tp", plan.tp)):
        if parts == 1:
            continue
        made, said = _PASSES[group](local, plan, training)
        local = made.graph
        notes += said
        for name, place in made.split.items():
            split.setdefault(name, []).append((group, place))
        for name in made.partial:
            partial[name].append(group)
    parameters = {
        name: ParameterShard(
            graph.values[name].shape, local.values[name].shape, tuple(split[name]), tuple(partial[name])
        )
        for name in graph.parameters
    }
    name = f"{graph.fingerprint}|{plan.tp}|{plan.cp}|{plan.ep}|{plan.sequence_parallel}|{plan.cp_kind}"
    name += f"|{plan.load_imbalance}|{training}"
    local = replace(
        local,
        notes=(*graph.notes, *notes),
        fingerprint=f"sha256:{hashlib.sha256(name.encode()).hexdigest()}",
    )
    return Sharding(local, parameters, tuple(notes))


def _sequences(graph: Graph, plan: Plan, training: bool) -> tuple[Realised, list[Notice]]:
    book = Book(graph, plan.cp, training=training)
    region = positions(book, rings=True)
    wanted = Wanted(
        region.layout,
        {index: (axis,) for index, axis in region.axes.items()},
        inputs_split=True,
        all_to_all=plan.cp_kind is CpKind.ALL_TO_ALL,
    )
    made = realise(book, "cp", wanted)
    missing = f"no sequence that divides over {plan.cp} ranks was found"
    if region.axes:
        missing = "it is not part of the sequence"
    if region.axes and not any(axis.ring for axis in region.axes.values()):
        made.notes.add("attention is spelled out, so keys and values are gathered instead of passed round")
    return made, _notes(book, "cp", made, region.breaks, missing)


def _reason(book: Book, index: int, reasons: Mapping[int, str], missing: str) -> str:
    """Why a node runs whole: its own reason, or that of the nearest node before it that stopped a split."""
    graph = book.graph
    waiting, seen = [index], {index}
    for found in waiting:
        if found in reasons:
            return reasons[found]
        if len(waiting) > _STEPS_BACK:
            break
        for name in graph.nodes[found].inputs:
            made = graph.producer.get(name)
            if made is not None and name not in book.weights and made not in seen:
                seen.add(made)
                waiting.append(made)
    return missing


def _experts(graph: Graph, plan: Plan, training: bool) -> tuple[Realised, list[Notice]]:
    book = Book(graph, plan.ep, training=training)
    made, reasons = split_experts(book, plan.load_imbalance)
    return made, [Notice(NOT_SPLIT, f"ep: {reason}; every rank holds all of them") for reason in reasons]


def _tensors(graph: Graph, plan: Plan, training: bool) -> tuple[Realised, list[Notice]]:
    book = Book(graph, plan.tp, training=training)
    stream = positions(book, rings=False)
    choice = choose(book, stream)
    summing = {index for region in choice.regions for index, axis in region.axes.items() if axis.sums}
    regrouped = with_sums_together(book, summing)
    if regrouped is not None:
        book = Book(regrouped, plan.tp, training=training)
        stream = positions(book, rings=False)
        choice = choose(book, stream)
    made = realise(book, "tp", _wanted(book, choice, stream if plan.sequence_parallel else None))
    stops = {index: reason for region in choice.regions for index, reason in region.breaks.items()}
    return made, _notes(book, "tp", made, {**choice.reasons, **stops}, "no split of a weight reaches it")


def _wanted(book: Book, choice: Choice, stream: Region | None) -> Wanted:
    layout = dict(choice.layout)
    axes: dict[int, tuple[Axis, ...]] = {}
    for region in choice.regions:
        for index, axis in region.axes.items():
            axes[index] = (*axes.get(index, ()), axis)
    if stream is not None:
        for index, axis in stream.axes.items():
            outputs = book.graph.nodes[index].outputs
            if all(name in book.weights and not book.origins(name) for name in outputs if name):
                continue
            # Products whose weights are split stay so: whole weights on parts of the sequence exchange less.
            if index not in axes or not book.work(index).matrix_flops:
                axes[index] = (*axes.get(index, ()), axis)
        for name, split in stream.layout.items():
            # Masks and tables of positions are cheaper to have whole.
            if name not in book.weights and name not in book.graph.inputs:
                layout.setdefault(name, split)
    weights = frozenset(name for region in choice.regions for name in region.layout if name in book.stored)
    return Wanted(layout, axes, weights)


_PASSES = {"cp": _sequences, "ep": _experts, "tp": _tensors}


def _notes(book: Book, group: str, made: Realised, reasons: Mapping[int, str], missing: str) -> list[Notice]:
    """What runs whole on every rank, grouped by op and reason; padding; assumptions of rules."""
    graph, parts = book.graph, book.parts
    flops = {index: book.work(index).matrix_flops for index in range(len(graph.nodes))}
    total = sum(flops.values()) or 1
    counts: Counter[tuple[str, str]] = Counter()
    shares: Counter[tuple[str, str]] = Counter()
    for index in sorted(made.whole):
        if flops[index]:
            key = graph.nodes[index].op_type, _reason(book, index, reasons, missing)
            counts[key] += 1
            shares[key] += flops[index]
    notes = [
        Notice(
            NOT_SPLIT,
            f"{counts[key]} {key[0]} ({shares[key] / total:.1%} of the FLOPs) run whole on each of {parts} "
            f"{group} ranks: {key[1]}",
        )
        for key in sorted(counts, key=lambda key: -shares[key])
    ]
    padded = sorted(name for name, place in made.split.items() if not is_exact(place, parts))
    if padded:
        extra = sum(
            made.graph.values[name].size_bytes * parts - graph.values[name].size_bytes for name in padded
        )
        shown = ", ".join(padded[:3]) + ("..." if len(padded) > 3 else "")
        notes.append(
            Notice(
                PADDED,
                f"padded to divide over {parts} {group} ranks: {shown}; {format_bytes(extra)} more in all",
            )
        )
    notes += [Notice(ASSUMED, f"{group}: {note}") for note in sorted(made.notes)]
    return notes
