"""`perfcast study llm-energy`: joules per request and token of a served decoder, prefill and decode apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from predictor.cli import options as opt
from predictor.cli.options import Output

if TYPE_CHECKING:
    from predictor.models.power.serving import ServingAnswer
    from predictor.types import Interval

SCHEMA = "perfcast.llm_energy/1"
_FULL = 16


def llm_energy(
    model: Annotated[str, typer.Argument(metavar="CONFIG.json|NAME", help="A decoder's configuration.")],
    device: opt.Device,
    batch: Annotated[int, typer.Option("--batch", "-b", metavar="N", help="Most sequences at once.")] = 32,
    prompt: Annotated[float, typer.Option("--prompt", metavar="TOKENS", help="Mean prompt.")] = 250.0,
    answer: Annotated[float, typer.Option("--answer", metavar="TOKENS", help="Mean answer.")] = 400.0,
    devices: Annotated[int, typer.Option("--devices", metavar="N", help="Devices of one node.")] = 1,
    replicas: Annotated[int, typer.Option("--replicas", metavar="N", help="Data-parallel copies.")] = 1,
    expert_parallel: Annotated[
        int, typer.Option("--ep", metavar="N", help="Ranks that hold whole experts.")
    ] = 1,
    weight_bits: Annotated[int, typer.Option("--weight-bits", metavar="16|8", help="8 is FP8.")] = _FULL,
    task: Annotated[
        str, typer.Option("--task", metavar="chat|reasoning|code|image|video", help="Kind of requests.")
    ] = "chat",
    bundle: opt.BundleOption = None,
    output: opt.OutputOption = Output.TABLE,
) -> None:
    """Energy of serving a decoder in batches (vLLM, steady state); boards alone, no host."""
    from predictor.api.llm_energy import llm_energy as predict
    from predictor.api.llm_energy import llm_fields, weight_method
    from predictor.cli.console import warn
    from predictor.cli.output import write_json

    fields = llm_fields(model)
    if weight_bits == _FULL and (method := weight_method(fields)):
        warn(
            f"weights are counted in 16 bits, not as quantization_config ({method}) says; "
            "--weight-bits 8 counts them in FP8"
        )

    found = predict(
        fields,
        opt.read_device(device),
        batch=batch,
        prompt_tokens=prompt,
        output_tokens=answer,
        devices=devices,
        replicas=replicas,
        expert_parallel=expert_parallel,
        weight_bits=weight_bits,
        task=task,
        bundle=bundle,
    )
    if output is Output.JSON:
        write_json(answer_to_json(found))
    else:
        from predictor.cli.console import data_console

        data_console().print(_view(found))


def answer_to_json(found: ServingAnswer) -> dict[str, Any]:
    """The answer; energy is that of all boards, scope device."""
    from dataclasses import asdict

    return {"schema": SCHEMA, "energy_scope": "device", **asdict(found)}


def _view(found: ServingAnswer) -> Any:
    from rich.console import Group
    from rich.text import Text

    from predictor.cli import text as txt
    from predictor.cli.fitted_table import FittedTable

    table = FittedTable("<", "<", "<", "")

    def line(label: str, interval: Interval, form: txt.Formatter, note: str = "") -> None:
        bounds = Text(txt.span(interval, form), "dim")
        table.add_row(Text(label, "bold"), Text(form(interval.value), "bold cyan"), bounds, Text(note, "dim"))

    line("step", found.step_s, txt.seconds, f"one token of {txt.number(found.batch)} sequences")
    line("throughput", found.tokens_per_s, lambda value: f"{txt.number(value)} tokens/s")
    line("mean power", found.power_w, txt.watts, "per device")
    line("energy / token", found.energy_per_token_j, txt.joules, "all devices, boards alone")
    parts = f"prefill {txt.joules(found.prefill_j)}, decode {txt.joules(found.decode_j)}"
    line("energy / request", found.energy_per_request_j, txt.joules, parts)
    if found.known_device:
        return table
    note = "no chip like this was measured: physics alone; decide by the interval"
    return Group(table, Text(), Text(note, "yellow"))
