from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from predictor.errors import InvalidInput, InvalidRequest, UnknownName
from predictor.hardware.accounting import Accounting
from predictor.hardware.carbon_trace import HourlyTrace, load_trace, seeded_trace
from predictor.hardware.prices import find_instance, list_instances
from predictor.hardware.sites import CarbonReading, Site, find_site, list_sites, load_site_file


@pytest.mark.parametrize("name", ["de", "DE", "deu", "Germany", "  germany "])
def test_a_country_has_many_names(name: str) -> None:
    assert find_site(name).id == "de"


def test_tables_disagree_and_the_answer_says_by_how_much() -> None:
    found = find_site("de").intensity()
    assert found is not None
    assert found.g_per_kwh.low < found.g_per_kwh.value < found.g_per_kwh.high
    assert found.year == 2024
    assert found.table_count == 3
    assert "carbontracker" in found.source


def test_a_year_picks_the_nearest_figure() -> None:
    site = Site(
        "x",
        "X",
        (CarbonReading(100, 2024, "a"), CarbonReading(300, 2015, "b"), CarbonReading(400, 2011, "b")),
    )
    latest, old = site.intensity(), site.intensity(2012)
    assert latest is not None
    assert old is not None
    assert (latest.g_per_kwh.value, latest.g_per_kwh.high) == (100, 100)
    assert (old.g_per_kwh.value, old.g_per_kwh.low, old.g_per_kwh.high) == (400, 400, 400)


def test_unknown_is_unknown() -> None:
    assert Site("x", "X").intensity() is None
    assert find_site("de").intensity(kind="marginal") is None
    with pytest.raises(UnknownName, match="germany"):
        find_site("germny")
    with pytest.raises(UnknownName, match="ge, us-ga"):
        find_site("georgia")


def test_no_shipped_place_emits_nothing() -> None:
    readings = [reading for site in list_sites() for reading in site.readings]
    assert len(list_sites()) > 500
    assert all(0 < reading.g_per_kwh < 1400 for reading in readings)


def test_a_site_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "day.csv").write_text("hour,g\n" + "\n".join(f"{h},{100 + h}" for h in range(24)))
    file = tmp_path / "lab.toml"
    file.write_text('[site]\nbase = "fr"\npue = 1.3\nusd_per_kwh = 0.2\ntrace = "day.csv"\n')
    site = load_site_file(file)
    assert (site.id, site.pue, site.usd_per_kwh) == ("lab", 1.3, 0.2)
    assert site.readings == find_site("fr").readings
    assert site.trace is not None
    assert site.trace.mean() == pytest.approx(111.5)
    file.write_text('[site]\ncarbon_g_per_kwh = 300\ncarbon_kind = "marginal"\n')
    marginal = load_site_file(file).intensity(kind="marginal")
    assert marginal is not None
    assert marginal.g_per_kwh.value == 300


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("pue = 1", "table .site"),
        ("[site]\npues = 1", "unknown key 'pues'"),
        ("[site]\npue = 0.5", "from 1 to 5"),
        ("[site]\ncarbon_g_per_kwh = 0", "0.1 to 5000"),
        ('[site]\ncarbon_g_per_kwh = 9\ncarbon_kind = "mean"', "average, marginal"),
        ('[site]\ntrace = "absent.csv"', "cannot be read"),
    ],
)
def test_bad_site_files_say_what_is_wrong(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "site.toml"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=problem):
        load_site_file(file)


def test_a_trace_is_averaged_over_the_run_and_repeats() -> None:
    trace = HourlyTrace((100.0, 200.0, 300.0), "test")
    assert trace.mean() == 200.0
    assert trace.mean(0.5, 1.0) == pytest.approx(150.0)
    assert trace.mean(2.0, 2.0) == pytest.approx(200.0)
    assert trace.mean(4.0, 1.0) == 200.0
    assert trace.best_start(2.0) == (0, 150.0)


def test_made_up_traces_keep_their_mean_and_their_seed() -> None:
    trace = seeded_trace(350.0, 1)
    assert trace.mean() == pytest.approx(350.0)
    assert trace == seeded_trace(350.0, 1) != seeded_trace(350.0, 2)
    assert "seed 1" in trace.source
    night = sum(trace.g_per_kwh[1::24]) / sum(trace.g_per_kwh[13::24])
    assert night > 1.2


def test_bad_traces(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("hour,g\n0,100\n1,many\n")
    with pytest.raises(InvalidInput, match="line 3"):
        load_trace(file)
    file.write_text("hour,g\n")
    with pytest.raises(InvalidInput, match="no hours"):
        load_trace(file)
    with pytest.raises(InvalidRequest, match="above 0"):
        HourlyTrace((100.0, 0.0), "test")


def test_instances_are_priced_whole_and_dated() -> None:
    price = find_instance("p4d.24xlarge")
    assert price.id == "aws:p4d.24xlarge"
    assert price.date
    assert price.hourly_usd(8) == price.usd_per_hour
    assert price.hourly_usd(9) == 2 * price.usd_per_hour
    assert price.hourly_usd(1, spot=True) == price.spot_usd_per_hour
    assert all(entry.usd_per_hour > 0 and entry.device_count >= 1 for entry in list_instances())
    with pytest.raises(UnknownName, match="instance"):
        find_instance("aws:p9")


def test_prices_of_the_users_own(tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    entry = {
        "id": "lab:one",
        "device": "A100",
        "device_count": 4,
        "usd_per_hour": 3.0,
        "region": "here",
        "date": "2026-11-01",
        "source": "us",
    }
    file.write_text(json.dumps({"instances": [entry]}))
    assert find_instance("one", file).hourly_usd(5) == 6.0
    file.write_text("{}")
    with pytest.raises(InvalidInput, match="no price table"):
        find_instance("two", file)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"pue": 0.9}, "1 to 5"),
        ({"kind": "hourly"}, "average, marginal"),
        ({"usd_per_device_hour": -1.0}, "usd_per_device_hour"),
        ({"usd_per_device_hour": 1.0, "instance": "p4d.24xlarge"}, "not both"),
        ({"site": 3}, "expected a code"),
        ({"lifetime_years": 0.0}, "above 0"),
        ({"spot": True}, "needs an instance"),
        ({"start_hour": 5.0}, "needs an hourly trace"),
        ({"start_hour": 5.0, "site": "de"}, "needs an hourly trace"),
    ],
)
def test_bad_accounting(options: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        Accounting(**options)  # type: ignore[arg-type]


def test_the_shipped_tables_are_those_of_the_published_ones() -> None:
    root = Path(os.environ.get("PERFCAST_DATA", "../shared/data")) / "curated"
    if not root.is_dir():
        pytest.skip("no raw measurements here: set PERFCAST_DATA")
    from predictor.models.corpus.carbon import site_table
    from predictor.models.corpus.prices import price_table

    folder = Path("predictor/hardware/data")
    assert json.loads((folder / "carbon.json").read_text()) == site_table(root)
    assert json.loads((folder / "prices.json").read_text()) == price_table(root)
