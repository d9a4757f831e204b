"""List prices of cloud instances, each with its region and what is known of its date."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path

from predictor.errors import InvalidInput, UnknownName

_DATA = Path(__file__).parent / "data" / "prices.json"


@dataclass(frozen=True, slots=True)
class InstancePrice:
    """One instance type in one region. `spot_usd_per_hour` is None where none was listed."""

    id: str
    device: str
    device_count: int
    usd_per_hour: float
    region: str
    date: str
    source: str
    spot_usd_per_hour: float | None = None

    def hourly_usd(self, devices: int, *, spot: bool = False) -> float | None:
        """USD per hour of as many instances as hold `devices`; None where the price is unknown."""
        price = self.spot_usd_per_hour if spot else self.usd_per_hour
        return None if price is None else price * ceil(devices / self.device_count)


def find_instance(name: str, path: str | Path | None = None) -> InstancePrice:
    """The instance of that name, `aws:p4d.24xlarge` or without the provider where that is clear.

    `path`: a table of the user's own, JSON as the shipped one. Raises UnknownName, InvalidInput.
    """
    table = _shipped() if path is None else _table(Path(path))
    key = "-".join(name.strip().lower().split())
    if key in table:
        return table[key]
    endings = [identity for identity in table if identity.partition(":")[2] == key]
    if len(endings) == 1:
        return table[endings[0]]
    if endings:
        raise UnknownName(f"instance {name!r} is several: {', '.join(endings)}; give one of these")
    raise UnknownName.among("instance", name, table)


def list_instances(path: str | Path | None = None) -> tuple[InstancePrice, ...]:
    """All instances of a table, by name."""
    return tuple((_shipped() if path is None else _table(Path(path))).values())


@cache
def _shipped() -> Mapping[str, InstancePrice]:
    return _table(_DATA)


def _table(file: Path) -> Mapping[str, InstancePrice]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        entries = [InstancePrice(**entry) for entry in content["instances"]]
    except OSError as error:
        raise InvalidInput(f"{file}: cannot be read ({error.strerror})", file=file) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(
            f"{file}: no price table ({error}); expected {{'instances': [{{'id', 'device', 'device_count', "
            "'usd_per_hour', 'region', 'date', 'source'}}]}}",
            file=file,
        ) from None
    counts: dict[str, int] = {}
    for entry in entries:
        counts[entry.id] = counts.get(entry.id, 0) + 1
    # One type in several regions: each under its region, the first alone as well.
    found: dict[str, InstancePrice] = {}
    for entry in entries:
        found.setdefault(entry.id, entry)
        if counts[entry.id] > 1:
            found[f"{entry.id}@{entry.region}".lower()] = entry
    return found
