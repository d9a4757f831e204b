from __future__ import annotations

import pytest

from predictor.hardware.accounting import Accounting
from predictor.hardware.carbon_trace import HourlyTrace
from predictor.hardware.sites import CarbonReading, Site
from predictor.types import Footprint, Interval
from predictor.wire.accounting import (
    accounting_from_proto,
    accounting_to_proto,
    footprint_from_proto,
    footprint_to_proto,
)
from predictor.wire.as_json import footprint_to_json

LAB = Site(
    "lab",
    "Lab",
    (CarbonReading(300.0, 2024, "meter"), CarbonReading(500.0, None, "meter", "marginal")),
    pue=1.3,
    usd_per_kwh=0.2,
    trace=HourlyTrace((100.0, 200.0), "file"),
)


@pytest.mark.parametrize(
    "accounting",
    [
        Accounting(),
        Accounting(site="de", year=2019, pue=1.2, usd_per_device_hour=2.0, node=False),
        Accounting(site=LAB, kind="marginal", start_hour=3.5, hours=8.0, embodied_kg_per_device=150.0),
        Accounting(instance="aws:p4d.24xlarge", spot=True, lifetime_years=5.0),
    ],
)
def test_an_accounting_survives_the_wire(accounting: Accounting) -> None:
    assert accounting_from_proto(accounting_to_proto(accounting)) == accounting


def test_what_is_unknown_stays_unknown_on_every_face() -> None:
    bare = Footprint(scope="node", energy_j=Interval(2.0, 1.0, 3.0), parts_j={"devices": 2.0})
    assert footprint_from_proto(footprint_to_proto(bare)) == bare
    shown = footprint_to_json(bare)
    unknown = {name for name, value in shown.items() if value == "unknown"}
    assert unknown == {"site", "pue", "intensity_g_per_kwh", "carbon_gco2e", "embodied_gco2e", "cost_usd"}
    assert shown["energy_kwh"]["value"] == pytest.approx(2.0 / 3.6e6)
