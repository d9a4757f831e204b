"""What an iteration costs beyond the boards: the rest of the node, the building, carbon and money.

Scopes: `device` (boards), `node` (boards, host, memory, network, storage, supplies), `facility` (node x PUE,
once, where the PUE is known). A job that fills part of a node is charged its share of the node's rest.
Devices that are hosts themselves (CPUs, phones) have no node around them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log

from predictor.compose.interval import log_interval
from predictor.errors import InvalidRequest, UnknownName
from predictor.hardware.accounting import Accounting
from predictor.hardware.catalog import find_device
from predictor.hardware.prices import find_instance, list_instances
from predictor.hardware.sites import Intensity
from predictor.hardware.spec import ClusterSpec, DeviceSpec
from predictor.models.corpus.chips import chip_of
from predictor.models.power.node_power import MEASURED_SCALE, NODE_LOG_SPREAD, NodeRest, node_rest
from predictor.types import Footprint, Interval, Prediction

_J_PER_KWH = 3.6e6
_USUAL_NODE = 8


def footprint(
    answer: Prediction, device: DeviceSpec, cluster: ClusterSpec | None, accounting: Accounting
) -> Footprint:
    """The footprint of one iteration of an answer.

    Raises InvalidRequest when it is priced by an instance that holds other chips.
    """
    _check_instance(accounting, device)
    nodes = answer.device_count / devices_per_node(answer, device, cluster)
    counted = accounting.node and not device.kind.is_host
    parts, energy = _node(answer, device, cluster, nodes) if counted else _boards(answer)
    place = accounting.place
    pue = accounting.pue if accounting.pue is not None else (place.pue if place else None)
    scope = "node" if counted else "device"
    if pue is not None:
        parts = {**parts, "building": (pue - 1.0) * sum(parts.values())}
        energy, scope = energy.scaled(pue), "facility"
    intensity = _intensity(accounting)
    embodied_g = _embodied_g(answer, accounting)
    cost, cost_note = _cost(answer, accounting, energy)
    return Footprint(
        scope=scope,
        site=place.id if place else "",
        node_count=nodes,
        pue=pue,
        energy_j=energy,
        parts_j=parts,
        intensity_g_per_kwh=intensity.g_per_kwh if intensity else None,
        carbon_g=_carbon(energy, intensity, embodied_g),
        carbon_note=_carbon_note(accounting, intensity),
        embodied_g=embodied_g,
        cost_usd=cost,
        cost_note=cost_note,
    )


def devices_per_node(answer: Prediction, device: DeviceSpec, cluster: ClusterSpec | None) -> int:
    """Devices that share a node: the cluster's, eight for modules, else the job's own up to eight."""
    if cluster is not None:
        return cluster.devices_per_node
    if device.form_factor.lower().startswith(("sxm", "oam", "hgx")) or device.link_kind in ("nvlink", "xgmi"):
        return _USUAL_NODE
    return min(_USUAL_NODE, answer.device_count)


def rest_of_node(answer: Prediction, device: DeviceSpec, cluster: ClusterSpec | None) -> NodeRest:
    """What stands around the devices of one node."""
    count = devices_per_node(answer, device, cluster)
    rest = node_rest(count, memory_gb_per_device=2.5 * device.memory_bytes / 1e9)
    return NodeRest(
        rest.devices, rest.host_w, rest.memory_w, rest.network_w, rest.storage_w, rest.loss, MEASURED_SCALE
    )


def _node(
    answer: Prediction, device: DeviceSpec, cluster: ClusterSpec | None, nodes: float
) -> tuple[dict[str, float], Interval]:
    rest, time_s = rest_of_node(answer, device, cluster), answer.iteration_time_s.value
    boards_w = answer.energy_j.value / time_s / nodes
    parts = {name: watts * time_s * nodes for name, watts in rest.parts_w(boards_w).items()}
    # The boards' uncertainty is that of the answer; the rest's that of metered nodes.
    total = sum(parts.values())
    share = parts["devices"] / total
    spread = _log_spread(answer.energy_j) * share + NODE_LOG_SPREAD * (1.0 - share)
    return parts, log_interval(total, spread)


def _boards(answer: Prediction) -> tuple[dict[str, float], Interval]:
    return {"devices": answer.energy_j.value}, answer.energy_j


def _log_spread(interval: Interval) -> float:
    if interval.value <= 0:
        return 0.0
    return max(log(interval.high / interval.value), log(interval.value / max(interval.low, 1e-300)))


def _intensity(accounting: Accounting) -> Intensity | None:
    place = accounting.place
    if place is None:
        return None
    if place.trace is not None:
        mean = place.trace.mean(accounting.start_hour, accounting.hours)
        return Intensity(Interval.exact(mean), None, place.trace.source, accounting.kind, 1)
    return place.intensity(accounting.year, accounting.kind)


def _carbon(energy: Interval, intensity: Intensity | None, embodied_g: float | None) -> Interval | None:
    if intensity is None:
        return None
    grid, made = intensity.g_per_kwh, embodied_g or 0.0
    bounds = (
        energy.value * grid.value / _J_PER_KWH + made,
        energy.low * grid.low / _J_PER_KWH + made,
        energy.high * grid.high / _J_PER_KWH + made,
    )
    return Interval(*bounds)


def _carbon_note(accounting: Accounting, intensity: Intensity | None) -> str:
    if accounting.place is None:
        return "no site given"
    if intensity is None:
        return f"no table knows the {accounting.kind} intensity of {accounting.place.id}"
    year = f", {intensity.year}" if intensity.year is not None else ""
    if year and accounting.year not in (None, intensity.year):
        year += f" (the nearest to {accounting.year})"
    tables = f", {intensity.table_count} tables" if intensity.table_count > 1 else ""
    return f"{intensity.kind} intensity of {accounting.place.id}{year}, {intensity.source}{tables}"


def _embodied_g(answer: Prediction, accounting: Accounting) -> float | None:
    if accounting.embodied_kg_per_device is None:
        return None
    share = answer.iteration_time_s.value / accounting.lifetime_s
    return 1e3 * accounting.embodied_kg_per_device * answer.device_count * share


def _check_instance(accounting: Accounting, device: DeviceSpec) -> None:
    """A device of the user's own may be whatever an instance holds; one of the catalogue is known."""
    if accounting.instance is None:
        return
    price = find_instance(accounting.instance)
    try:
        held, known = find_device(price.device), find_device(device.id)
    except UnknownName:
        return
    if chip_of(held.id) != chip_of(known.id):
        fitting = [one.id for one in list_instances() if _holds(one.device, device.id)]
        example = f", e.g. {', '.join(fitting[:3])}" if fitting else "; no table lists one"
        raise InvalidRequest(
            f"instance {price.id} holds {price.device}, not {device.id}; "
            f"expected an instance of that chip{example}, or --price-per-hour",
            field="instance",
        )


def _holds(listed: str, device_id: str) -> bool:
    try:
        return chip_of(find_device(listed).id) == chip_of(device_id)
    except UnknownName:
        return False


def _cost(answer: Prediction, accounting: Accounting, energy: Interval) -> tuple[Interval | None, str]:
    hours = answer.iteration_time_s.scaled(1 / 3600)
    if accounting.instance is not None:
        price = find_instance(accounting.instance)
        hourly = price.hourly_usd(answer.device_count, spot=accounting.spot)
        if hourly is None:
            return None, f"no spot price of {price.id} is listed"
        kind = "spot" if accounting.spot else "on demand"
        return hours.scaled(hourly), f"{price.id} {kind}, {price.region}, {price.date}"
    if accounting.usd_per_device_hour is not None:
        per_hour = accounting.usd_per_device_hour * answer.device_count
        note = f"{accounting.usd_per_device_hour:g} USD per device-hour, given"
        return hours.scaled(per_hour) if per_hour else Interval.exact(0.0), note
    place = accounting.place
    if place is not None and place.usd_per_kwh is not None:
        return energy.scaled(
            place.usd_per_kwh / _J_PER_KWH
        ), f"electricity alone, {place.usd_per_kwh:g} USD/kWh"
    return None, "no price given"


def carbon_of(energy_j: float, g_per_kwh: float) -> float:
    """g CO2e of an energy at an intensity: 1 MJ at 232 g/kWh is 64.44 g."""
    return energy_j / _J_PER_KWH * g_per_kwh


def parts_in_order(parts: Mapping[str, float]) -> dict[str, float]:
    """The parts of a footprint, largest first."""
    return dict(sorted(parts.items(), key=lambda item: -item[1]))
