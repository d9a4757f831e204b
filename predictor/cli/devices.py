"""`perfcast devices`: what the catalogue holds, devices and clusters of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from predictor.cli import options as opt
from predictor.cli.options import Output

if TYPE_CHECKING:
    from predictor.hardware.spec import ClusterSpec, DeviceSpec

app = typer.Typer(help="List and show devices and clusters of the catalogue.", no_args_is_help=True)

DEVICES_SCHEMA = "perfcast.devices/1"
CLUSTERS_SCHEMA = "perfcast.clusters/1"


@app.command("list")
def list_command(
    kind: Annotated[str | None, typer.Option("--kind", help="gpu, cpu, tpu, npu, edge or phone.")] = None,
    vendor: Annotated[str | None, typer.Option("--vendor", help="E.g. nvidia.")] = None,
    output: opt.OutputOption = Output.TABLE,
) -> None:
    """List devices with their main numbers."""
    from predictor.cli.console import data_console
    from predictor.cli.output import write_json
    from predictor.errors import UnknownName
    from predictor.hardware.catalog import list_devices

    devices = list_devices()
    for name, value, known in (
        ("kind", kind, {str(device.kind) for device in devices}),
        ("vendor", vendor, {device.vendor.lower() for device in devices}),
    ):
        if value is not None and value.lower() not in known:
            raise UnknownName.among(name, value, sorted(known))
    chosen = [
        device
        for device in devices
        if (kind is None or device.kind == kind.lower())
        and (vendor is None or device.vendor.lower() == vendor.lower())
    ]
    if output is Output.JSON:
        write_json({"schema": DEVICES_SCHEMA, "devices": [_to_json(device) for device in chosen]})
        return
    from predictor.cli.render_devices import device_table

    data_console().print(device_table(chosen))


@app.command("show")
def show(
    device: Annotated[str, typer.Argument(help="Id, name or alias.")], output: opt.OutputOption = Output.TABLE
) -> None:
    """Show one device, each number with its source."""
    from predictor.cli.console import data_console
    from predictor.cli.output import write_json
    from predictor.hardware.catalog import find_device

    spec = find_device(device)
    if output is Output.JSON:
        write_json({"schema": DEVICES_SCHEMA, "devices": [_to_json(spec)]})
        return
    from predictor.cli.render_devices import device_view

    data_console().print(device_view(spec))


@app.command("clusters")
def clusters(output: opt.OutputOption = Output.TABLE) -> None:
    """List clusters that --cluster knows."""
    from predictor.cli.console import data_console
    from predictor.cli.output import write_json
    from predictor.hardware.catalog import list_clusters

    found = list_clusters()
    if output is Output.JSON:
        write_json({"schema": CLUSTERS_SCHEMA, "clusters": [_to_json(cluster) for cluster in found]})
        return
    from predictor.cli.render_devices import cluster_table

    data_console().print(cluster_table(found))


def _to_json(spec: DeviceSpec | ClusterSpec) -> dict[str, Any]:
    from dataclasses import asdict

    # Learned times are the bundle's, not the catalogue's.
    return {name: value for name, value in asdict(spec).items() if name != "exchanges"}
