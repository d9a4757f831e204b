"""`perfcast`: the command-line face. Commands import what they need when run, so that `--help` stays light.

Exit codes: 0 ok, 1 bug, 2 usage, 3 invalid input, 4 does not fit, 5 coverage missing, 6 server unreachable,
7 accuracy gate failed, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from predictor.cli import (
    calibrate,
    compare,
    completion,
    corpus,
    devices,
    doctor,
    evaluate,
    explain,
    fit,
    graph,
    llm_energy,
    memory,
    plan,
    predict,
    profile,
    serve,
    study,
    sweep,
    train,
)
from predictor.cli.console import one_line
from predictor.cli.help_sections import SectionedCommand
from predictor.errors import PerfcastError

_BUG, _NOT_INSTALLED, _INTERRUPTED = 1, 3, 130

# Packages that only some commands need, by import name, with the extra that installs them.
_EXTRA_OF = {
    "rich": "cli",
    "grpc": "server",
    "grpc_status": "server",
    "grpc_health": "server",
    "grpc_reflection": "server",
    "google": "server",
    "polars": "train",
    "torch": "torch",
    "onnxscript": "torch",
    "PIL": "pictures",
}


class _Group(TyperGroup):
    """Runs a command and turns what it raises into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        debug = bool(ctx.params.get("debug"))
        try:
            return super().invoke(ctx)
        except PerfcastError as error:
            if debug:
                raise
            print(f"error: {one_line(error.message)}", file=sys.stderr)
            code = error.exit_code
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            code = _INTERRUPTED
        except BrokenPipeError:
            # The reader has left, e.g. `| head`; what follows has nowhere to go, the flush at exit included.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        except Exception as error:
            if debug or _is_for_typer(error):
                raise
            code, message = _explained(error)
            print(f"error: {message}", file=sys.stderr)
        raise typer.Exit(code)


app = typer.Typer(
    name="perfcast",
    cls=_Group,
    help="Predicts iteration time, memory and energy of deep-learning jobs before they run.",
    epilog="Exit codes: 0 answered, 1 a bug, 2 usage, 3 invalid input, 4 does not fit (--require-feasible), "
    "5 op without a rule (--strict), 6 no server, 7 accuracy gate, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
_command = partial(app.command, cls=SectionedCommand)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    from predictor import __version__
    from predictor.errors import InvalidBundle
    from predictor.models.bundle import Bundle

    try:
        bundle = Bundle.load().id
    except InvalidBundle:
        bundle = "none"
    print(f"perfcast {__version__}, bundle {bundle}")
    raise typer.Exit


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show version and bundle, and exit."
        ),
    ] = False,
) -> None:
    """Predicts iteration time, memory and energy of deep-learning jobs before they run."""


_command("predict")(predict.predict)
_command("compare")(compare.compare)
_command("sweep", short_help="Sweep power caps and batches.")(sweep.sweep)
_command("explain", short_help="List the ops that take the time; draw the timeline.")(explain.explain)
_command("fit", short_help="Find the largest batch, length or depth that fits.")(fit.fit)
_command("memory", short_help="Show memory over one iteration; draw it.")(memory.memory)
_command("plan", short_help="Find the best ways to split a job over devices.")(plan.plan)
app.add_typer(graph.app, name="graph")
app.add_typer(devices.app, name="devices")
_command("serve")(serve.serve)
app.add_typer(corpus.app, name="corpus")
_command("train")(train.train)
_command("profile", short_help="Time operators and networks on this machine.")(profile.profile)
_command("calibrate", short_help="Fit the answers to a few measured jobs.")(calibrate.calibrate)
_command("evaluate")(evaluate.evaluate)
study.app.command("llm-energy", short_help="Energy of serving a decoder in batches.")(llm_energy.llm_energy)
study.app.command("completion", cls=SectionedCommand)(completion.completion)
app.add_typer(study.app, name="study")
_command("doctor")(doctor.doctor)


def _explained(error: Exception) -> tuple[int, str]:
    """(exit code, message) of what no part of perfcast raises on purpose."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if extra := _EXTRA_OF.get(package):
        hint = f"pip install 'perfcast[{extra}]'"
        return _NOT_INSTALLED, f"this command needs {package}, which is not installed: {hint}"
    what = f"{type(error).__name__}: {one_line(str(error))[:300]}"
    return _BUG, f"bug in perfcast: {what}; run `perfcast --debug ...` for the traceback"


def _is_for_typer(error: Exception) -> bool:
    """Usage errors, exits and aborts, which typer itself reports."""
    return type(error).__module__.startswith(("typer", "click"))


def main() -> None:
    """Entry point of the `perfcast` script."""
    app(prog_name="perfcast")


if __name__ == "__main__":
    main()
