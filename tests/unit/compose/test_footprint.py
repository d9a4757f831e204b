from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.compose.footprint import carbon_of, footprint
from predictor.errors import InvalidRequest
from predictor.hardware.accounting import Accounting
from predictor.hardware.carbon_trace import HourlyTrace
from predictor.hardware.catalog import default_cluster, find_device
from predictor.hardware.prices import find_instance
from predictor.hardware.sites import CarbonReading, Site, site_of_intensity
from predictor.models.power.node_power import fit_scale, node_rest
from predictor.types import Coverage, Interval, Prediction

H100 = find_device("h100-sxm-80gb")


def answer(devices: int = 8, time_s: float = 0.5, board_w: float = 600.0) -> Prediction:
    """An iteration of half a second on boards of 600 W."""
    energy = board_w * devices * time_s
    return Prediction(
        iteration_time_s=Interval(time_s, 0.9 * time_s, 1.1 * time_s),
        throughput_samples_per_s=Interval.exact(1.0),
        device_peak_bytes=Interval.exact(1.0),
        allocator_peak_bytes=Interval.exact(1.0),
        fits=True,
        energy_j=Interval(energy, 0.8 * energy, 1.25 * energy),
        average_power_w=Interval.exact(board_w),
        time_breakdown_s={"forward": time_s},
        memory_breakdown_bytes={"parameters": 1.0},
        energy_breakdown_j={"static": energy},
        coverage=Coverage(learned=1.0),
        bundle="b",
        graph="g",
        device=H100.id,
        device_count=devices,
    )


def test_a_megajoule_at_232_grams_is_64_44() -> None:
    assert carbon_of(1e6, 232.0) == pytest.approx(64.44, abs=0.005)


def test_parts_sum_and_scopes_grow() -> None:
    boards = footprint(answer(), H100, None, Accounting(node=False))
    node = footprint(answer(), H100, None, Accounting())
    building = footprint(answer(), H100, None, Accounting(pue=1.5))
    assert [found.scope for found in (boards, node, building)] == ["device", "node", "facility"]
    assert boards.energy_j == answer().energy_j
    for found in (boards, node, building):
        assert sum(found.parts_j.values()) == pytest.approx(found.energy_j.value)
        assert found.parts_j["devices"] == pytest.approx(answer().energy_j.value)
        assert found.energy_j.low < found.energy_j.value < found.energy_j.high
    assert 1.2 < node.energy_j.value / boards.energy_j.value < 1.8
    # The building once, and only it.
    assert building.energy_j.value == pytest.approx(1.5 * node.energy_j.value)


def test_unknown_is_never_zero() -> None:
    found = footprint(answer(), H100, None, Accounting())
    assert found.carbon_g is found.cost_usd is found.pue is found.embodied_g is None
    assert found.carbon_note == "no site given"
    assert found.cost_note == "no price given"
    nowhere = footprint(answer(), H100, None, Accounting(site=Site("lab", "Lab")))
    assert nowhere.carbon_g is None
    assert "no table knows" in nowhere.carbon_note


def test_another_place_changes_carbon_and_not_energy() -> None:
    dirty = footprint(answer(), H100, None, Accounting(site="pl"))
    clean = footprint(answer(), H100, None, Accounting(site="se"))
    assert dirty.energy_j == clean.energy_j
    assert dirty.carbon_g is not None
    assert clean.carbon_g is not None
    assert dirty.carbon_g.value > 8 * clean.carbon_g.value


def test_carbon_is_energy_times_intensity_and_its_range_holds_both() -> None:
    site = Site("x", "X", (CarbonReading(300, 2024, "a"), CarbonReading(400, 2023, "b")))
    found = footprint(answer(), H100, None, Accounting(site=site))
    assert found.carbon_g is not None
    assert found.carbon_g.value == pytest.approx(carbon_of(found.energy_j.value, 300))
    assert found.carbon_g.high == pytest.approx(carbon_of(found.energy_j.high, 400))
    assert found.carbon_g.low == pytest.approx(carbon_of(found.energy_j.low, 300))


def test_hours_of_the_day_count() -> None:
    trace = HourlyTrace((100.0,) * 12 + (500.0,) * 12, "day and night")
    site = Site("x", "X", trace=trace)
    day, night, both = (
        footprint(answer(), H100, None, Accounting(site=site, start_hour=start, hours=hours))
        for start, hours in ((0.0, 6.0), (12.0, 6.0), (0.0, None))
    )
    grams = [found.carbon_g.value for found in (day, night, both) if found.carbon_g is not None]
    assert grams[1] == pytest.approx(5 * grams[0])
    assert grams[2] == pytest.approx(3 * grams[0])


def test_making_the_devices_is_spread_over_their_life() -> None:
    site = site_of_intensity(300.0)
    found = footprint(answer(), H100, None, Accounting(site=site, embodied_kg_per_device=150.0))
    bare = footprint(answer(), H100, None, Accounting(site=site))
    assert found.embodied_g == pytest.approx(8 * 150e3 * 0.5 / (4 * 8766 * 3600))
    assert found.carbon_g is not None
    assert bare.carbon_g is not None
    assert found.carbon_g.value - bare.carbon_g.value == pytest.approx(found.embodied_g)


def test_prices_per_hour_and_of_whole_instances() -> None:
    per_device = footprint(answer(), H100, None, Accounting(usd_per_device_hour=2.5))
    assert per_device.cost_usd is not None
    assert per_device.cost_usd.value == pytest.approx(8 * 2.5 * 0.5 / 3600)
    instance = footprint(answer(9), H100, None, Accounting(instance="aws:p5.48xlarge"))
    assert instance.cost_usd is not None
    price = find_instance("aws:p5.48xlarge")
    assert instance.cost_usd.value == pytest.approx(2 * price.usd_per_hour * 0.5 / 3600)
    assert price.date in instance.cost_note
    power = footprint(answer(), H100, None, Accounting(site=Site("x", "X", usd_per_kwh=0.3)))
    assert power.cost_usd is not None
    assert power.cost_usd.value == pytest.approx(power.energy_j.value / 3.6e6 * 0.3)
    assert "electricity alone" in power.cost_note


def test_a_year_that_no_table_has_is_named_beside_the_one_taken() -> None:
    assert "(the nearest to 1990)" in footprint(answer(), H100, None, Accounting("de", year=1990)).carbon_note
    assert "nearest" not in footprint(answer(), H100, None, Accounting("de")).carbon_note


def test_an_instance_of_other_chips_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"holds NVIDIA A100, not h100-sxm-80gb.*e\.g\. aws:p5"):
        footprint(answer(), H100, None, Accounting(instance="aws:p4d.24xlarge"))
    # Boards of one chip differ in memory and form factor, and lists do not say which they mean.
    small = footprint(answer(), find_device("a100-pcie-80gb"), None, Accounting(instance="aws:p4d.24xlarge"))
    assert small.cost_usd is not None
    own = footprint(answer(), replace(H100, id="my-gpu"), None, Accounting(instance="aws:p4d.24xlarge"))
    assert own.cost_usd is not None


def test_a_job_is_charged_its_share_of_a_node() -> None:
    one = footprint(answer(1), H100, None, Accounting())
    many = footprint(answer(16), H100, default_cluster(H100, 16), Accounting())
    assert (one.node_count, many.node_count) == (0.125, 2.0)
    assert one.energy_j.value / 1 == pytest.approx(many.energy_j.value / 16)


def test_a_cpu_is_its_own_host() -> None:
    cpu = next(d for d in _devices() if d.kind.is_host)
    found = footprint(replace(answer(1), device=cpu.id), cpu, None, Accounting())
    assert found.scope == "device"


def _devices():  # type: ignore[no-untyped-def]
    from predictor.hardware.catalog import list_devices

    return list_devices()


def test_the_node_is_told_by_metered_ones() -> None:
    bare = node_rest(8, air_cooled=False)
    boards = [4000.0, 5000.0]
    truth = replace(bare, scale=1.3)
    found = fit_scale(bare, boards, [truth.node_w(watts) for watts in boards])
    assert found.scale == pytest.approx(1.3)
    assert sum(found.parts_w(4000.0).values()) == pytest.approx(found.node_w(4000.0))
