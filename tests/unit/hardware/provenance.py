"""How each number of the catalogue stands: a document that was read, a data sheet from memory, or a rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum

from predictor.hardware.spec import DeviceSpec

# The field of DeviceSpec that a group of sources speaks for.
FIELD_OF_GROUP: Mapping[str, str] = {
    "memory": "memory_bytes",
    "bandwidth": "memory_bytes_per_s",
    "l2": "l2_bytes",
    "cores": "core_count",
    "clock": "clock_hz",
    "vector": "vector_flops_per_s",
    "matrix": "matrix_flops_per_s",
    "power": "tdp_w",
    "link": "link_bytes_per_s",
    "idle": "idle_w",
    "reported_memory": "reported_memory_bytes",
}


class Provenance(StrEnum):
    """Best standing of a number, from a file that anyone can check down to an estimate."""

    DOCUMENTED = "documented"
    RECALLED = "recalled"
    RULE = "rule"


def provenance(source: str) -> Provenance:
    """Standing of one entry of `DeviceSpec.sources`: its best part counts (`; ` separates parts)."""
    found = [_part(part) for part in source.split("; ")]
    return min(found, key=list(Provenance).index)


def count_provenance(devices: Iterable[DeviceSpec]) -> Mapping[str, Counter[Provenance]]:
    """Per group of sources, how many devices stand where."""
    counts: dict[str, Counter[Provenance]] = {group: Counter() for group in FIELD_OF_GROUP}
    for device in devices:
        for group, source in device.sources.items():
            counts.setdefault(group, Counter())[provenance(source)] += 1
    return counts


def _part(text: str) -> Provenance:
    if text.startswith("rule:"):
        return Provenance.RULE
    return Provenance.RECALLED if text.startswith("recalled") else Provenance.DOCUMENTED
