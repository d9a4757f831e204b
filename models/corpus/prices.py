"""Prices of cloud instances, as the catalogue ships them: list prices with their region and date.

`price_table(folder)` makes predictor/hardware/data/prices.json from curated/cloud_prices.csv. Prices age, so
each carries what is known of its date, and answers repeat it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def price_table(folder: Path) -> dict[str, Any]:
    """Instances by `provider:type`; where a type is listed in several regions, one entry each."""
    import polars as pl

    rows = pl.read_csv(folder / "cloud_prices.csv")
    columns = (
        "provider", "instance_type", "device", "device_count", "usd_per_hour_on_demand", "usd_per_hour_spot",
        "region", "price_date", "source",
    )  # fmt: skip
    instances = [
        {
            "id": f"{provider}:{name}".lower().replace(" ", "-"),
            "device": device,
            "device_count": count,
            "usd_per_hour": on_demand,
            "spot_usd_per_hour": spot,
            "region": region,
            "date": date,
            "source": source,
        }
        for provider, name, device, count, on_demand, spot, region, date, source in rows.select(
            columns
        ).iter_rows()
        if on_demand is not None and count
    ]
    instances.sort(key=lambda entry: (entry["id"], entry["region"]))
    return {"schema": "perfcast.prices/1", "unit": "USD per hour of the instance", "instances": instances}


def write_price_table(folder: Path, out: Path) -> None:
    """Writes the table; equal inputs give equal bytes."""
    from predictor.files import write_whole

    text = json.dumps(price_table(folder), separators=(",", ":")).replace('},{"id"', '},\n{"id"')
    write_whole(out, lambda path: path.write_text(text + "\n", encoding="utf-8"))
