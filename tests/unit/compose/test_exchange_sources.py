"""What a plan exchanges, and where the times come from."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from predictor.compose.exchange_sources import UNMEASURED_LOG_SPREAD, exchange_rows, plan_log_spread
from predictor.hardware.catalog import find_cluster
from predictor.hardware.spec import ClusterSpec, ExchangeOrigin
from predictor.parallel.collectives import GroupShape
from predictor.parallel.plan import Plan
from predictor.types import CpKind

CLUSTER = find_cluster("dgx-a100-80gb:4")


class InNode:
    """Times of all that stays in a node."""

    def times_s(self, kind: str, size_bytes: Any, place: Any, cluster: ClusterSpec) -> Any:
        return np.ones_like(size_bytes) if place.nodes == 1 else None

    def origin(self, kind: str, place: Any, cluster: ClusterSpec) -> ExchangeOrigin | None:
        assert isinstance(place, GroupShape)
        return ExchangeOrigin(("lab/a100",), 0.2) if place.nodes == 1 else None


def test_each_group_says_what_it_exchanges_and_who_timed_that() -> None:
    measured = replace(CLUSTER, exchanges=InNode())
    plan = Plan(tp=4, dp=2, pp=4, ep=2, sequence_parallel=True, microbatches=4)
    rows = {row.group: row for row in exchange_rows(plan, measured, training=True)}
    assert set(rows) == {"pp", "tp", "ep", "dp_cp"}
    assert (rows["tp"].collective, rows["tp"].ranks, rows["tp"].link) == ("reduce_scatter", 4, "nvlink")
    assert (rows["tp"].source, rows["tp"].systems, rows["tp"].log_spread) == ("learned", ("lab/a100",), 0.2)
    assert (rows["pp"].collective, rows["pp"].link, rows["pp"].source) == (
        "send_recv",
        "infiniband",
        "analytic",
    )
    assert rows["ep"].collective == "all_to_all"
    inference = exchange_rows(plan, measured, training=False)
    assert "dp_cp" not in {row.group for row in inference}


def test_rings_zero_and_single_devices() -> None:
    ring = exchange_rows(Plan(cp=2, cp_kind=CpKind.RING), CLUSTER, training=True)
    assert ("cp", "send_recv") in {(row.group, row.collective) for row in ring}
    sharded = exchange_rows(Plan(dp=8, zero=3), CLUSTER, training=False)
    assert [(row.group, row.collective) for row in sharded] == [("dp_cp", "reduce_scatter")]
    assert exchange_rows(Plan(), CLUSTER, training=True) == ()
    assert exchange_rows(Plan(dp=8), None, training=True) == ()


def test_the_widest_group_decides_the_interval_and_calibrated_links_know_their_own() -> None:
    measured = replace(CLUSTER, exchanges=InNode())
    assert plan_log_spread(Plan(tp=8), measured) == 0.2
    assert plan_log_spread(Plan(tp=8, dp=2), measured) == UNMEASURED_LOG_SPREAD
    calibrated = replace(measured, intra_node=replace(CLUSTER.intra_node, log_spread=0.05))
    assert plan_log_spread(Plan(tp=8), calibrated) == 0.05
    assert plan_log_spread(Plan(dp=8), None) == UNMEASURED_LOG_SPREAD
    assert plan_log_spread(Plan(tp=8), CLUSTER) == pytest.approx(0.5)
