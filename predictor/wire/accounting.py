"""Accounting and Footprint <-> predictor.v1."""

from __future__ import annotations

from typing import Any

from predictor.hardware.accounting import Accounting
from predictor.hardware.carbon_trace import HourlyTrace
from predictor.hardware.sites import CarbonReading, Site
from predictor.types import Footprint, Interval
from predictor.v1 import candidate_pb2 as candidate
from predictor.v1 import prediction_pb2 as pb

_OPTIONAL = ("year", "hours", "pue", "usd_per_device_hour", "embodied_kg_per_device")
_FOOTPRINT_INTERVALS = ("intensity_g_per_kwh", "carbon_g", "cost_usd")


def accounting_to_proto(accounting: Accounting) -> candidate.Accounting:
    """The message of an accounting."""
    message = candidate.Accounting(
        kind=accounting.kind,
        start_hour=accounting.start_hour,
        instance=accounting.instance or "",
        spot=accounting.spot,
        lifetime_years=accounting.lifetime_years,
        boards_only=not accounting.node,
        **_present(accounting, _OPTIONAL),
    )
    if isinstance(accounting.site, Site):
        message.site.CopyFrom(_site_to_proto(accounting.site))
    elif accounting.site is not None:
        message.site_id = accounting.site
    return message


def accounting_from_proto(message: candidate.Accounting) -> Accounting:
    """The accounting of a message. Raises InvalidRequest, UnknownName."""
    place = message.WhichOneof("place")
    site: str | Site | None = None
    if place is not None:
        site = message.site_id if place == "site_id" else _site_from_proto(message.site)
    options: dict[str, Any] = {name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)}
    if message.HasField("lifetime_years"):
        options["lifetime_years"] = message.lifetime_years
    return Accounting(
        site=site,
        kind=message.kind or "average",
        start_hour=message.start_hour,
        instance=message.instance or None,
        spot=message.spot,
        node=not message.boards_only,
        **options,
    )


def _site_to_proto(site: Site) -> candidate.Site:
    readings = [
        candidate.Site.Reading(
            g_per_kwh=reading.g_per_kwh,
            source=reading.source,
            kind=reading.kind,
            **_present(reading, ("year",)),
        )
        for reading in site.readings
    ]
    trace = site.trace
    return candidate.Site(
        id=site.id,
        name=site.name,
        readings=readings,
        trace_g_per_kwh=trace.g_per_kwh if trace else (),
        trace_source=trace.source if trace else "",
        **_present(site, ("pue", "usd_per_kwh")),
    )


def _site_from_proto(message: candidate.Site) -> Site:
    readings = tuple(
        CarbonReading(
            reading.g_per_kwh,
            reading.year if reading.HasField("year") else None,
            reading.source,
            reading.kind or "average",
        )
        for reading in message.readings
    )
    hours = tuple(message.trace_g_per_kwh)
    return Site(
        id=message.id,
        name=message.name,
        readings=readings,
        pue=message.pue if message.HasField("pue") else None,
        usd_per_kwh=message.usd_per_kwh if message.HasField("usd_per_kwh") else None,
        trace=HourlyTrace(hours, message.trace_source) if hours else None,
    )


def footprint_to_proto(found: Footprint) -> pb.Footprint:
    """The message of a footprint."""
    message = pb.Footprint(
        scope=found.scope,
        energy_j=interval_to_proto(found.energy_j),
        parts_j=[pb.Part(name=name, value=value) for name, value in found.parts_j.items()],
        site=found.site,
        node_count=found.node_count,
        carbon_note=found.carbon_note,
        cost_note=found.cost_note,
        **_present(found, ("pue", "embodied_g")),
    )
    for name in _FOOTPRINT_INTERVALS:
        if (interval := getattr(found, name)) is not None:
            getattr(message, name).CopyFrom(interval_to_proto(interval))
    return message


def footprint_from_proto(message: pb.Footprint) -> Footprint:
    """The footprint of a message."""
    known: dict[str, Any] = {
        name: interval_from_proto(getattr(message, name))
        for name in _FOOTPRINT_INTERVALS
        if message.HasField(name)
    }
    known |= {name: getattr(message, name) for name in ("pue", "embodied_g") if message.HasField(name)}
    return Footprint(
        scope=message.scope,
        energy_j=interval_from_proto(message.energy_j),
        parts_j={part.name: part.value for part in message.parts_j},
        site=message.site,
        node_count=message.node_count,
        carbon_note=message.carbon_note,
        cost_note=message.cost_note,
        **known,
    )


def interval_to_proto(interval: Interval) -> pb.Interval:
    """The message of an interval."""
    return pb.Interval(value=interval.value, low=interval.low, high=interval.high, coverage=interval.coverage)


def interval_from_proto(message: pb.Interval) -> Interval:
    """The interval of a message."""
    return Interval(message.value, message.low, message.high, message.coverage)


def _present(value: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names if getattr(value, name) is not None}
