"""`perfcast study`: published models of training architectures as what-if questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from predictor.cli import options as opt
from predictor.cli.options import Output

if TYPE_CHECKING:
    from predictor.parallel.architectures.pai import System, Workload

app = typer.Typer(help="What-if studies of training architectures.", no_args_is_help=True)

STUDY_SCHEMA = "perfcast.study/1"
Rows: TypeAlias = list[dict[str, Any]]

_MEGA, _GIGA, _TERA, _MILLI, _MICRO = 1e6, 1e9, 1e12, 1e-3, 1e-6
_BITS = 8
# Fields of a sweep as people write them: field of the system and its unit in SI.
_SWEEPS = {
    "ethernet_gbit": ("ethernet_bytes_per_s", _GIGA / _BITS),
    "pcie_gb": ("pcie_bytes_per_s", _GIGA),
    "nvlink_gb": ("nvlink_bytes_per_s", _GIGA),
    "gpu_tflops": ("flops_per_s", _TERA),
    "memory_tb": ("memory_bytes_per_s", _TERA),
}
_GPT2_XL_GRADIENT_MB = 6230.4
"""1,557.6 million parameters in FP32."""


@app.command("pai", short_help="Step time by the media that weights cross.")
def pai(
    case: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CASE]...", help="Jobs of the study, e.g. bert; all by default."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL.onnx", help="A graph of your own instead.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", "-b", metavar="N", help="Samples of --model.")
    ] = None,
    optimizer: Annotated[str, typer.Option("--optimizer", help="Of --model: sgd, momentum, adam.")] = "sgd",
    architecture: Annotated[
        str, typer.Option("--architecture", help="Of --model: 1w1g, 1wng, ps_worker, allreduce_local, ...")
    ] = "allreduce_local",
    replicas: Annotated[int, typer.Option("--replicas", metavar="N", help="Devices of the job.")] = 8,
    system: Annotated[str, typer.Option("--system", help="pai or v100: rates of the study.")] = "pai",
    overlap: Annotated[str, typer.Option("--overlap", help="none, ideal, or a share from 0 to 1.")] = "none",
    to: Annotated[
        str | None, typer.Option("--to", metavar="ARCHITECTURE", help="Move the jobs to this architecture.")
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            "--sweep",
            metavar="RATE=A,B,...",
            help="Speed-up by ethernet_gbit, pcie_gb, nvlink_gb, gpu_tflops or memory_tb.",
        ),
    ] = None,
    output: opt.OutputOption = Output.TABLE,
) -> None:
    """Step time by the media that weights cross (Wang et al. 2019, Alibaba PAI)."""
    from predictor.parallel.architectures.pai import SYSTEMS, port, step_time

    chosen = _named(SYSTEMS, "system", system)
    share = _overlap(overlap)
    jobs = _jobs(case, model, batch, optimizer, architecture, replicas)
    rows: Rows = []
    for job in jobs:
        if sweep is not None:
            rows += _swept(job, chosen, sweep, share)
        elif to is not None:
            moved = port(job, to, chosen, overlap=share)
            rows.append(
                {
                    "job": job.name,
                    "from": job.architecture.value,
                    "to": to,
                    "before_s": moved.before.total_s,
                    "after_s": moved.after.total_s,
                    "replicas": moved.replicas,
                    "replica_speedup": moved.replica_speedup,
                    "throughput_speedup": moved.throughput_speedup,
                    "fits": moved.fits,
                }
            )
        else:
            step = step_time(job, chosen, overlap=share)
            rows.append(
                {
                    "job": job.name,
                    "architecture": job.architecture.value,
                    "input_s": step.input_s,
                    "flop_s": step.flop_s,
                    "memory_s": step.memory_s,
                    "weights_s": step.communication_s,
                    "step_s": step.total_s,
                    "bottleneck": step.bottleneck,
                    "traffic_bytes": job.traffic_bytes,
                    "weight_bytes": job.dense_bytes + job.embedding_bytes,
                }
            )
    _show("pai", rows, output)


@app.command("phub", short_help="Parameter servers by where they stand.")
def phub(
    model_mb: Annotated[float, typer.Option("--model-mb", metavar="MB", help="Bytes of the weights.")],
    compute_ms: Annotated[float, typer.Option("--compute-ms", metavar="MS", help="Compute of one step.")],
    workers: Annotated[int, typer.Option("--workers", metavar="N")] = 8,
    node_gbit: Annotated[float, typer.Option("--node-gbit", metavar="GBIT", help="Port of a node.")] = 10.0,
    racks: Annotated[int, typer.Option("--racks", metavar="N")] = 1,
    rack_gbit: Annotated[
        float | None,
        typer.Option("--rack-gbit", metavar="GBIT", help="Uplink of a rack; a node's by default."),
    ] = None,
    hierarchical: Annotated[
        bool, typer.Option("--hierarchical", help="A server per rack adds up its rack's gradients first.")
    ] = False,
    output: opt.OutputOption = Output.TABLE,
) -> None:
    """Parameter servers by where they stand (Luo et al. 2018, Parameter Hub)."""
    from predictor.parallel.architectures.servers import server_step
    from predictor.types import ServerPlacement

    rows: Rows = []
    for placement in ServerPlacement:
        step = server_step(
            placement,
            model_bytes=model_mb * _MEGA,
            compute_s=compute_ms * _MILLI,
            workers=workers,
            node_bytes_per_s=node_gbit * _GIGA / _BITS,
            racks=racks,
            rack_bytes_per_s=None if rack_gbit is None else rack_gbit * _GIGA / _BITS,
            hierarchical=hierarchical,
        )
        rows.append(
            {
                "placement": placement.value,
                "busiest_node_bytes": step.busiest_bytes,
                "needed_bytes_per_s": step.bound_bytes_per_s,
                "cross_rack_bytes": step.cross_rack_bytes,
                "step_s": step.step_s,
                "bottleneck": step.bottleneck,
            }
        )
    _show("phub", rows, output)


@app.command("tee", short_help="Data parallelism between enclaves.")
def tee(
    compute_ms: Annotated[float, typer.Option("--compute-ms", metavar="MS", help="Step without gradients.")],
    gradient_mb: Annotated[
        float, typer.Option("--gradient-mb", metavar="MB", help="Gradients of one replica; GPT-2-XL's.")
    ] = _GPT2_XL_GRADIENT_MB,
    ranks: Annotated[int, typer.Option("--ranks", metavar="N")] = 4,
    link_gb: Annotated[float, typer.Option("--link-gb", metavar="GB/s", help="Between neighbours.")] = 25.0,
    latency_us: Annotated[float, typer.Option("--latency-us", metavar="US", help="Of one message.")] = 5.0,
    bucket_mb: Annotated[
        list[float], typer.Option("--bucket-mb", metavar="MiB", help="Repeat for several bucket sizes.")
    ] = [25.0, 100.0, 400.0, 1600.0, 6400.0],  # noqa: B006 - typer copies it
    fit_ranks: Annotated[
        int, typer.Option("--fit-ranks", metavar="N", help="Ranks of the published measurement.")
    ] = 4,
    output: opt.OutputOption = Output.TABLE,
) -> None:
    """Data parallelism between enclaves (Lee et al. 2025), crypto fitted on 41.6x and 3.03x of GPT-2-XL."""
    from dataclasses import replace

    from predictor.hardware.spec import LinkSpec
    from predictor.parallel.architectures.confidential import (
        DdpJob,
        fit_confidential,
        plain_step_s,
        slowdown,
        step_s,
    )
    from predictor.units import MIB

    link = LinkSpec("link", latency_us * _MICRO, link_gb * _GIGA)
    job = DdpJob(gradient_mb * _MEGA, ranks, compute_ms * _MILLI, link)
    fitted = fit_confidential(replace(job, gradient_bytes=_GPT2_XL_GRADIENT_MB * _MEGA, ranks=fit_ranks))
    rows: Rows = [
        {
            "bucket_mib": size,
            "buckets": job.bucket_count(size * MIB),
            "plain_s": plain_step_s(job, size * MIB),
            "confidential_s": step_s(job, size * MIB, fitted),
            "slowdown": slowdown(job, size * MIB, fitted),
        }
        for size in sorted(bucket_mb)
    ]
    _show("tee", rows, output, alpha_s=fitted.alpha_s, crypto_bytes_per_s=fitted.bytes_per_s)


@app.command("scale-up", short_help="Learners that one box feeds from shared memory.")
def scale_up_command(
    model_mb: Annotated[float, typer.Option("--model-mb", metavar="MB", help="Bytes of the weights.")],
    sample_ms: Annotated[float, typer.Option("--sample-ms", metavar="MS", help="Compute of one sample.")],
    fixed_ms: Annotated[float, typer.Option("--fixed-ms", metavar="MS", help="And of any mini-batch.")] = 0.0,
    batch: Annotated[
        list[int], typer.Option("--batch", "-b", metavar="N", help="Repeat for several mini-batches.")
    ] = [4, 32, 128],  # noqa: B006 - typer copies it
    learners: Annotated[int, typer.Option("--learners", metavar="N")] = 8,
    box_gb: Annotated[float, typer.Option("--box-gb", metavar="GB/s", help="What the box moves.")] = 50.0,
    samples: Annotated[int, typer.Option("--samples", metavar="N", help="Of an epoch.")] = 1_000_000,
    output: opt.OutputOption = Output.TABLE,
) -> None:
    """Learners that one box feeds from a shared-memory parameter server (Zhang et al. 2017, GaDei)."""
    from predictor.parallel.architectures.scale_up import LearnerWorkload, scale_up

    workload = LearnerWorkload(model_mb * _MEGA, fixed_ms * _MILLI, sample_ms * _MILLI)
    rows: Rows = []
    for size in sorted(batch):
        found = scale_up(
            workload, batch=size, learners=learners, box_bytes_per_s=box_gb * _GIGA, samples=samples
        )
        rows.append(
            {
                "batch": size,
                "demand_bytes_per_s": found.demand_bytes_per_s,
                "linear_learners": found.learners,
                "speedup": found.speedup,
                "epoch_bytes": found.epoch_bytes,
            }
        )
    _show("scale-up", rows, output)


def _jobs(
    cases: list[str] | None,
    model: str | None,
    batch: int | None,
    optimizer: str,
    architecture: str,
    replicas: int,
) -> list[Workload]:
    from dataclasses import replace

    from predictor.parallel.architectures.pai import CASES, workload_of

    if model is None:
        chosen = [_named(CASES, "case", name) for name in cases or CASES]
        return [replace(job, replicas=replicas) for job in chosen]
    from predictor.features.programs.program import build_program
    from predictor.features.reading.reader import read_graph
    from predictor.types import Mode, Optimizer, Precision, Runtime

    graph = read_graph(opt.read_model(model), batch=batch)
    program = build_program(
        graph,
        mode=Mode.TRAIN,
        precision=Precision.FP32,
        optimizer=Optimizer.parse(optimizer),
        runtime=Runtime.EAGER,
    )
    return [workload_of(program, opt.model_name(model), architecture, replicas=replicas)]


def _swept(job: Workload, system: System, text: str, overlap: float) -> Rows:
    from predictor.errors import InvalidRequest
    from predictor.parallel.architectures.pai import sweep

    name, _, listed = text.partition("=")
    field, unit = _named(_SWEEPS, "rate", name)
    try:
        values = [float(part) for part in listed.split(",")]
    except ValueError:
        raise InvalidRequest(
            f"--sweep is {text!r}; expected numbers, e.g. ethernet_gbit=10,25,100", field="sweep"
        ) from None
    gains = sweep(job, system, field, [value * unit for value in values], overlap=overlap)
    return [
        {"job": job.name, name: value, "speedup": gain} for value, gain in zip(values, gains, strict=True)
    ]


def _overlap(text: str) -> float:
    from predictor.errors import InvalidRequest

    try:
        return {"none": 0.0, "ideal": 1.0}[text] if text in ("none", "ideal") else float(text)
    except ValueError:
        raise InvalidRequest(
            f"--overlap is {text!r}; expected none, ideal, or a share from 0 to 1", field="overlap"
        ) from None


def _named(known: Any, kind: str, name: str) -> Any:
    from predictor.errors import UnknownName

    if name not in known:
        raise UnknownName.among(kind, name, known)
    return known[name]


def _show(study: str, rows: Rows, output: Output, **constants: float) -> None:
    if output is Output.JSON:
        from predictor.cli.output import write_json

        write_json({"schema": STUDY_SCHEMA, "study": study, "constants": constants, "rows": rows})
        return
    from predictor.cli.console import data_console
    from predictor.cli.render_study import study_view

    data_console().print(study_view(rows, constants))
