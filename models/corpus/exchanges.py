"""What measurements of collectives share: one timed exchange of equal ranks as a row of the schema.

The links of a row are nameplate rates per direction and device, so that learned times are relative to what a
cluster file states. `system` is who ran on what: the group that leave-system-out evaluation holds out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from predictor.hardware.catalog import find_device
from predictor.hardware.links import link_latency_s, own_link
from predictor.hardware.spec import LinkSpec
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.schema import canonical

if TYPE_CHECKING:
    import polars as pl

SUBJECT_KIND = "exchange"
SOURCES = ("aiconfigurator-comm", "vidur-network", "nccl-tests-logs")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One kind of exchange at one size.

    Attributes:
        system: publisher's system, with its name. device: catalogue id.
        collective: one of predictor.parallel.collectives.KINDS. size_bytes: as collective_time_s counts.
        library: `nccl` (RCCL too), `custom` (an inference stack's own kernels), `oneccl`.
        timer: `loop` of calls, or `profiler` of kernels.
        ranks, per_node: how many in all, and on one node.
        in_switch: whether the library may let the switch reduce (NVLink SHARP).
        intra, inter: (kind, bytes/s) of the links; `inter` is None within one node.
    """

    system: str
    device: str
    collective: str
    size_bytes: int
    library: str
    timer: str
    ranks: int
    per_node: int
    in_switch: bool
    intra: tuple[str, float]
    inter: tuple[str, float] | None = None

    @property
    def nodes(self) -> int:
        """Nodes it spans."""
        return self.ranks // self.per_node

    def links(self) -> tuple[LinkSpec, LinkSpec]:
        """Links in a node and between nodes; within one node the second is the first and never used."""
        return replace(_link(*self.intra), in_switch=self.in_switch), _link(*(self.inter or self.intra))


def _link(kind: str, bytes_per_s: float) -> LinkSpec:
    return LinkSpec(kind, link_latency_s(kind), bytes_per_s)


def device_link(device: str) -> tuple[str, float]:
    """Kind and nameplate rate of a catalogued device's link to its peers."""
    link = own_link(find_device(device))
    return link.kind, link.bytes_per_s


def frame_of(rows: Iterable[tuple[Exchange, float]], source: str) -> pl.DataFrame:
    """Rows of the measurement schema from (exchange, seconds)."""
    import polars as pl

    records = [
        {
            "subject": row.collective,
            "subject_kind": SUBJECT_KIND,
            "device": row.device,
            "configuration": canonical(asdict(row)),
            "quantity": "latency",
            "value": time_s,
            "unit": "s",
            "scope": "kernel" if row.timer == "profiler" else "kernel_and_dispatch",
            "source": source,
            "device_group": chip_of(row.device),
            "model_group": row.system,
        }
        for row, time_s in rows
    ]
    return pl.DataFrame(records, schema_overrides={"value": pl.Float64})


def exchange_of(configuration: str) -> Exchange:
    """Inverse of the configuration that `frame_of` writes."""
    facts: Mapping[str, Any] = json.loads(configuration)
    pairs = {name: tuple(facts[name]) if facts[name] else None for name in ("intra", "inter")}
    return Exchange(**{**facts, **pairs})
