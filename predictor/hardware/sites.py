"""Sites: where a job runs, for carbon and cost: grid intensity, what the building adds, the price of power.

    find_site("germany"), find_site("aws:eu-central-1"), find_site("us-ca"), load_site_file("lab.toml")

Published intensities of one place differ by tens of per cent (year, method), so an answer is one table's
figure with the range of all recent ones. Unknown stays unknown: no place, no year, no PUE is made up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from predictor.checks import real_number
from predictor.errors import InvalidInput, InvalidRequest, UnknownName
from predictor.hardware.carbon_trace import HourlyTrace, load_trace
from predictor.hardware.toml_fields import read_toml
from predictor.types import Interval

_DATA = Path(__file__).parent / "data" / "carbon.json"
SITE_KINDS = ("average", "marginal")
_RECENT_YEARS = 3
# Grids run from below 10 (hydro, nuclear) to 1300 g/kWh (oil shale); a slip of unit lies outside.
_LEAST_G, _MOST_G = 0.1, 5000.0


@dataclass(frozen=True, slots=True)
class CarbonReading:
    """One published figure. `year` is None where the table states none; `kind` is average or marginal."""

    g_per_kwh: float
    year: int | None
    source: str
    kind: str = "average"


@dataclass(frozen=True, slots=True)
class Intensity:
    """g CO2e per kWh with the range of the tables that speak of about the same time."""

    g_per_kwh: Interval
    year: int | None
    source: str
    kind: str
    table_count: int


@dataclass(frozen=True, slots=True)
class Site:
    """A place.

    Attributes:
        readings: published intensities, the preferred table first; () is unknown.
        pue: power usage effectiveness of the building; None is unknown, and then nothing is added.
        usd_per_kwh: price of electricity, where known.
        trace: intensity hour by hour; it wins over readings.
    """

    id: str
    name: str
    readings: tuple[CarbonReading, ...] = ()
    pue: float | None = None
    usd_per_kwh: float | None = None
    trace: HourlyTrace | None = None

    def __post_init__(self) -> None:
        """Raises InvalidRequest for numbers that no site has."""
        if self.pue is not None:
            real_number(self.pue, f"site {self.id!r}: pue", "site.pue", "a number from 1 to 5", 1, 5)
        if self.usd_per_kwh is not None:
            what = f"site {self.id!r}: usd_per_kwh"
            real_number(self.usd_per_kwh, what, "site.usd_per_kwh", "USD from 0 to 100", 0, 100)
        for reading in self.readings:
            _check_intensity(reading.g_per_kwh, f"site {self.id!r}: carbon intensity")
            if reading.kind not in SITE_KINDS:
                raise InvalidRequest(
                    f"site {self.id!r}: kind is {reading.kind!r}; expected one of {', '.join(SITE_KINDS)}",
                    field="site.kind",
                )

    def intensity(self, year: int | None = None, kind: str = "average") -> Intensity | None:
        """The intensity of a year (None: the latest known), or None where no table knows it.

        The preferred table's figure nearest to the year; the range holds every table's figures within three
        years of it and the undated ones.
        """
        own = [reading for reading in self.readings if reading.kind == kind]
        if not own:
            return None
        chosen = _nearest(own, year)
        alike = [
            reading.g_per_kwh
            for reading in own
            if reading.year is None or chosen.year is None or abs(reading.year - chosen.year) <= _RECENT_YEARS
        ]
        value = Interval(chosen.g_per_kwh, min(alike), max(alike))
        tables = len({reading.source for reading in own})
        return Intensity(value, chosen.year, chosen.source, kind, tables)


def _nearest(readings: Sequence[CarbonReading], year: int | None) -> CarbonReading:
    dated = [reading for reading in readings if reading.year is not None]
    if not dated:
        return readings[0]
    target = year if year is not None else max(reading.year or 0 for reading in dated)
    # Readings stand in order of preference, and min keeps the first of equals.
    return min(dated, key=lambda reading: abs((reading.year or 0) - target))


def _check_intensity(value: float, what: str) -> float:
    expected = f"g CO2e per kWh from {_LEAST_G:g} to {_MOST_G:g}"
    real_number(value, what, "site.carbon_g_per_kwh", expected, _LEAST_G, _MOST_G)
    return float(value)


def site_of_intensity(g_per_kwh: float, name: str = "given") -> Site:
    """A site of which only an intensity is known. Raises InvalidRequest for one that no grid has."""
    return Site(name, name, (CarbonReading(g_per_kwh, None, "given by the caller"),))


def find_site(name: str) -> Site:
    """The place of that code or name: `de`, `Germany`, `us-ca`, `gcp:europe-west3`.

    Raises UnknownName with near names; a name that several places share is one error that lists them.
    """
    places, names = _shipped()
    key = " ".join(name.strip().lower().split())
    found = names.get(key, ())
    if len(found) > 1:
        raise UnknownName(f"site {name!r} is several places: {', '.join(found)}; give one of these codes")
    if not found:
        raise UnknownName.among("site", name, names)
    identity = found[0]
    return places[identity]


def list_sites() -> tuple[Site, ...]:
    """All shipped places, by code."""
    return tuple(_shipped()[0].values())


@cache
def _shipped() -> tuple[Mapping[str, Site], Mapping[str, tuple[str, ...]]]:
    table = json.loads(_DATA.read_text(encoding="utf-8"))
    sources = [source["name"] for source in table["sources"]]
    places = {
        identity: Site(
            identity,
            place["name"],
            tuple(CarbonReading(value, year, sources[at]) for value, year, at in place["readings"]),
        )
        for identity, place in table["places"].items()
    }
    names: dict[str, list[str]] = {identity: [identity] for identity in places}
    for identity, place in table["places"].items():
        for other in place["also"]:
            # A code is never shadowed by another place's name.
            if other not in places and identity not in names.setdefault(other, []):
                names[other].append(identity)
    return places, {name: tuple(found) for name, found in names.items()}


def load_site_file(path: str | Path) -> Site:
    """A site from a TOML file, on top of a shipped place when it names one under `base`.

    Keys of the table [site]: id, name, base, carbon_g_per_kwh, carbon_kind (average or marginal),
    carbon_year, carbon_source, pue, usd_per_kwh, trace (a CSV file beside it: hour, g per kWh).
    Raises InvalidInput.
    """
    file = Path(path)
    content = read_toml(file)
    table = content.get("site")
    if not isinstance(table, dict):
        raise InvalidInput(f"{file}: no table [site]; expected one with at least an id", file=file)
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        known = ", ".join(sorted(_KEYS))
        raise InvalidInput(f"{file}: unknown key {unknown[0]!r}; known: {known}", file=file, key=unknown[0])
    for key in ("id", "name", "base", "carbon_kind", "carbon_source", "trace"):
        if key in table and not isinstance(table[key], str):
            raise InvalidInput(f"{file}: {key} is {table[key]!r}; expected text", file=file, key=key)
    if "carbon_year" in table and not isinstance(table["carbon_year"], int):
        raise InvalidInput(f"{file}: carbon_year is {table['carbon_year']!r}; expected a year", file=file)
    try:
        return _site_of_table(table, file)
    except InvalidRequest as error:
        raise InvalidInput(f"{file}: {error.message}", file=file) from None


_KEYS = frozenset(
    (
        "id", "name", "base", "carbon_g_per_kwh", "carbon_kind", "carbon_year", "carbon_source", "pue",
        "usd_per_kwh", "trace",
    )
)  # fmt: skip


def _site_of_table(table: Mapping[str, Any], file: Path) -> Site:
    site = find_site(table["base"]) if "base" in table else Site(file.stem, file.stem)
    identity = table.get("id", site.id if "base" not in table else file.stem)
    changes: dict[str, Any] = {"id": identity, "name": table.get("name", identity)}
    changes |= {key: table[key] for key in ("pue", "usd_per_kwh") if key in table}
    if "carbon_g_per_kwh" in table:
        reading = CarbonReading(
            _check_intensity(table["carbon_g_per_kwh"], "carbon_g_per_kwh"),
            table.get("carbon_year"),
            table.get("carbon_source", str(file)),
            table.get("carbon_kind", "average"),
        )
        changes["readings"] = (reading,)
    if "trace" in table:
        changes["trace"] = load_trace(file.parent / table["trace"])
    return replace(site, **changes)
