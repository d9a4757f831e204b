"""What the ranks of a plan exchange, group by group, and where the times of it come from."""

from __future__ import annotations

from predictor.hardware.spec import ClusterSpec
from predictor.parallel.collectives import GroupShape
from predictor.parallel.placement import boundary_crosses_node, group_place
from predictor.parallel.plan import Plan
from predictor.types import CpKind, ExchangeRow

UNMEASURED_LOG_SPREAD = 0.5
"""Log half-width on exchanges that no measurement here calibrates."""
_PAIR_IN_NODE, _PAIR_ACROSS = GroupShape(2, 1, 2, 2), GroupShape(1, 2, 1, 2)


def exchange_rows(plan: Plan, cluster: ClusterSpec | None, *, training: bool) -> tuple[ExchangeRow, ...]:
    """One row for each group of more than one rank; none on one device."""
    if cluster is None or plan.device_count == 1:
        return ()
    return tuple(
        _row(group, collective, place, cluster)
        for group, collective, place in _exchanges(plan, cluster, training=training)
    )


def plan_log_spread(plan: Plan, cluster: ClusterSpec | None) -> float:
    """90 % log half-width of all a plan exchanges: the widest group's; calibrated links know their own."""
    if cluster is None or plan.device_count > cluster.device_count:
        return UNMEASURED_LOG_SPREAD
    calibrated = cluster.log_spread(plan.device_count)
    if calibrated is not None:
        return calibrated
    spreads = [row.log_spread for row in exchange_rows(plan, cluster, training=True)]
    return max(spreads, default=UNMEASURED_LOG_SPREAD)


def _exchanges(plan: Plan, cluster: ClusterSpec, *, training: bool) -> list[tuple[str, str, GroupShape]]:
    """(group, its main collective, where it lies)."""
    reduced = "reduce_scatter" if plan.zero else "all_reduce"
    wanted = [
        ("tp", "reduce_scatter" if plan.sequence_parallel else "all_reduce", True),
        ("cp", "send_recv" if plan.cp_kind is CpKind.RING else "all_to_all", True),
        ("ep", "all_to_all", True),
        ("dp_cp", reduced, training or plan.zero == 3),
        ("expert_dp_cp", reduced, plan.ep > 1 and (training or plan.zero == 3)),
    ]
    found = [
        (group, collective, group_place(plan, group, cluster))
        for group, collective, happens in wanted
        if happens and plan.group_size(group) > 1
    ]
    if plan.pp > 1:
        crosses = bool(boundary_crosses_node(plan, cluster)[:-1].any())
        found.insert(0, ("pp", "send_recv", _PAIR_ACROSS if crosses else _PAIR_IN_NODE))
    return found


def _row(group: str, collective: str, place: GroupShape, cluster: ClusterSpec) -> ExchangeRow:
    learned = cluster.exchanges
    origin = None if learned is None else learned.origin(collective, place, cluster)
    near = cluster.island if place.in_island and cluster.island is not None else cluster.intra_node
    far = cluster.inter_rack if place.racks > 1 and cluster.inter_rack is not None else cluster.inter_node
    return ExchangeRow(
        group=group,
        collective=collective,
        ranks=place.ranks,
        nodes=place.nodes,
        link=(far if place.nodes > 1 else near).kind,
        source="analytic" if origin is None else "learned",
        systems=() if origin is None else origin.systems,
        log_spread=UNMEASURED_LOG_SPREAD if origin is None else origin.log_spread,
    )
