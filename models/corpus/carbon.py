"""Carbon intensities of electricity, as the catalogue of sites ships them: facts of ten published tables.

`site_table(folder)` makes predictor/hardware/data/carbon.json from curated/carbon_intensity.csv. Countries go
by their two-letter codes, with the three-letter ones and names beside them; states, provinces and bidding
zones by their own codes; cloud regions as `provider:region`. A value of 0 stands for "none" in the tables
and is left out: no grid emits nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SOURCES: tuple[tuple[str, str, str], ...] = (
    ("carbontracker 2.4.7 (Our World in Data)", "country average, lifecycle", "MIT"),
    ("codecarbon 3.3.2 usa_emissions (eGRID)", "state average, combustion", "MIT"),
    ("codecarbon 3.3.2 nordic", "bidding zone average", "MIT"),
    ("codecarbon 3.3.2 china_provincial", "province average", "MIT"),
    ("codecarbon 3.3.2 cloud/impact", "cloud region, as the provider states", "MIT"),
    ("cloud-carbon-footprint/ccf-coefficients@b0032d928c78", "cloud region", "Apache-2.0"),
    ("codecarbon 3.3.2 global_energy_mix", "country average", "MIT"),
    ("mlco2/impact@d0d3ee5a71ea electricityMap yearly averages", "zone, mean of hours of a year", "MIT"),
    ("ecologits 0.11.3", "country mix, global warming potential", "MPL-2.0"),
    ("mlco2/impact@d0d3ee5a71ea impact.csv", "cloud region, about 2019", "MIT"),
)
"""Published tables, the ones to prefer first: (name, what its figures are, licence)."""


def site_table(folder: Path) -> dict[str, Any]:
    """The shipped table: sources, and per place its names and [g/kWh, year or null, source] readings."""
    import polars as pl

    rows = pl.read_csv(folder / "carbon_intensity.csv").filter(pl.col("gco2_per_kwh") > 0)
    names = [source for source, _, _ in SOURCES]
    places: dict[str, dict[str, Any]] = {}
    codes = _alpha2(rows)
    columns = ("source", "provider", "region_code", "region_name", "country", "year", "gco2_per_kwh")
    for source, provider, code, name, country, year, value in rows.select(columns).iter_rows():
        label = str(code if code is not None else country)
        identity = codes.get(label, label).lower() if provider == "grid" else f"{provider}:{label}".lower()
        place = places.setdefault(identity, {"name": "", "also": [], "readings": []})
        title = _TITLES.get(label, str(name or country or label))
        if not place["name"] or len(place["name"]) <= 3:
            place["name"] = title
        for other in (label.lower(), title.lower()):
            if provider == "grid" and other != identity and other not in place["also"]:
                place["also"].append(other)
        place["readings"].append([round(value, 1), None if year is None else int(year), names.index(source)])
    for place in places.values():
        place["readings"].sort(key=lambda reading: (reading[2], reading[1] or 0))
    return {
        "schema": "perfcast.carbon/1",
        "unit": "gCO2e per kWh",
        "sources": [{"name": name, "what": what, "licence": licence} for name, what, licence in SOURCES],
        "places": dict(sorted(places.items())),
    }


_TITLES = {"WOR": "World", "EEE": "European Economic Area"}


def _alpha2(rows: Any) -> dict[str, str]:
    """Three-letter country codes -> two-letter ones, by the countries' names in two of the tables."""
    import polars as pl

    short = rows.filter(pl.col("source") == SOURCES[0][0]).select("region_code", "country")
    by_name = {country: code for code, country in short.iter_rows()}
    long = rows.filter(pl.col("source") == SOURCES[6][0]).select("region_code", "country")
    found = {code: by_name[country] for code, country in long.iter_rows() if country in by_name}
    # Names that the two tables spell differently.
    return found | {"USA": "US", "GBR": "GB", "CZE": "CZ", "KOR": "KR", "RUS": "RU", "TUR": "TR", "VNM": "VN"}


def write_site_table(folder: Path, out: Path) -> None:
    """Writes the table; equal inputs give equal bytes."""
    from predictor.files import write_whole

    text = json.dumps(site_table(folder), separators=(",", ":"), ensure_ascii=False)
    text = text.replace('"},"', '"},\n"').replace(']},"', ']},\n"')
    write_whole(out, lambda path: path.write_text(text + "\n", encoding="utf-8"))
