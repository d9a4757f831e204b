"""Timed jobs as users write them: one CSV line per job, read with every bad line named.

    graph,batch,mode,precision,optimizer,runtime,time_s
    resnet50,32,train,amp,momentum,eager,0.0912
    models/detector.onnx,8,infer,fp16,none,eager,0.0213
    micro_matmul--m=4096--k=4096--n=4096,1,infer,bf16,none,eager,0.00021

`graph` is an ONNX file (relative to the CSV) or an architecture of predictor.features.architectures with its
options; `time_ms` may stand for `time_s`. Missing columns take the defaults of `perfcast predict`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import Any

from predictor.errors import InvalidData, InvalidPlan, UnknownName
from predictor.features.architectures import ARCHITECTURES
from predictor.features.graph import Graph
from predictor.features.reading.reader import read_graph
from predictor.files import write_whole
from predictor.models.corpus.built_graphs import built_graph
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.schema import conform
from predictor.models.corpus.whole_model import WholeModelRow, measurements
from predictor.parallel.plan_text import format_plan, parse_plan
from predictor.releases import release_number
from predictor.types import Mode, Optimizer, Precision, Runtime

SOURCE = "profile"
"""What the corpus calls rows of one's own."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class TimedJob:
    """One job and the median time of its iteration.

    Attributes:
        graph: architecture with options, or path of an ONNX file. line: where it stood in its file.
        plan: how several devices share the job, as predictor.parallel.plan_text spells it; `batch` is of all.
        low_s, high_s: 10th and 90th percentile; repeats: iterations behind them.
        device: catalogue id or alias, or what the profiler saw. clock_mhz, power_w: right after the last one.
        threads, framework, framework_version, clock: how it was run, and `wall` or `cpu` time.
    """

    graph: str
    time_s: float
    batch: int = 1
    mode: Mode = Mode.INFER
    precision: Precision = Precision.FP32
    optimizer: Optimizer = Optimizer.SGD
    runtime: Runtime = Runtime.EAGER
    device: str = ""
    low_s: float = 0.0
    high_s: float = 0.0
    repeats: int = 0
    clock_mhz: float = 0.0
    power_w: float = 0.0
    threads: int = 0
    framework: str = ""
    framework_version: str = ""
    clock: str = ""
    plan: str = ""
    line: int = 0

    @property
    def effective_optimizer(self) -> Optimizer:
        """No step is in an inference."""
        return self.optimizer if self.mode is Mode.TRAIN else Optimizer.NONE


_COLUMNS = tuple(item.name for item in fields(TimedJob) if item.name != "line")
_CHOICES: Mapping[str, Any] = {
    "mode": Mode.parse,
    "precision": Precision.parse,
    "optimizer": Optimizer.parse,
    "runtime": Runtime.parse,
    "plan": lambda text: format_plan(parse_plan(text)),
}
_NUMBERS: Mapping[str, tuple[type, float]] = {
    "time_s": (float, 0.0),
    "batch": (int, 0.0),
    "low_s": (float, -1.0),
    "high_s": (float, -1.0),
    "repeats": (int, -1.0),
    "clock_mhz": (float, -1.0),
    "power_w": (float, -1.0),
    "threads": (int, -1.0),
}
"""Column -> kind, and the number that it must exceed."""


def read_jobs(path: Path) -> tuple[TimedJob, ...]:
    """All jobs of a CSV file. Raises InvalidData naming every line and cell that is wrong."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidData(f"{path}: cannot be read as CSV text ({error})", file=path) from None
    reader = csv.DictReader(StringIO(text))
    _check_header(path, reader.fieldnames or [])
    jobs: list[TimedJob] = []
    wrong: list[str] = []
    for record in reader:
        # DictReader puts surplus cells under None, and None into cells that are missing.
        cells = {key: (value or "").strip() for key, value in record.items() if isinstance(value, str | None)}
        if None in record:
            wrong.append(
                f"line {reader.line_num}: {len(record[None])} cells more than the header has columns"
            )
        elif any(cells.values()):
            job = _job(cells, reader.line_num, path.parent, wrong)
            jobs += [job] if job is not None else []
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise InvalidData(f"{path}: {'; '.join(wrong[:_SHOWN])}{more}", file=path)
    if not jobs:
        raise InvalidData(f"{path}: holds no rows; expected one job a line below the header", file=path)
    return tuple(jobs)


def write_jobs(path: Path, jobs: Iterable[TimedJob]) -> None:
    """Writes what `read_jobs` reads. Raises OutputNotWritable."""
    out = StringIO()
    writer = csv.DictWriter(out, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for job in jobs:
        cells = asdict(job)
        writer.writerow({name: _cell(cells[name]) for name in _COLUMNS})
    write_whole(path, lambda partial: partial.write_text(out.getvalue(), encoding="utf-8"), make_folder=True)


def write_measurements(path: Path, jobs: Iterable[TimedJob]) -> None:
    """Writes the jobs as Parquet in the corpus's schema. Raises OutputNotWritable."""
    frame = conform(measurements([measured_row(job) for job in jobs], SOURCE), SOURCE)
    write_whole(path, lambda partial: frame.write_parquet(partial, compression="zstd"), make_folder=True)


def measured_row(job: TimedJob) -> WholeModelRow:
    """A job as a row of the corpus: one of a single device teaches like any other source."""
    device, plan = job.device or "unknown", parse_plan(job.plan)
    return WholeModelRow(
        graph=job.graph,
        model=job.graph,
        family=job.graph.split("--")[0],
        device=device,
        device_group=chip_of(device),
        batch=job.batch // plan.dp,
        measured_s=job.time_s,
        devices=plan.device_count,
        mode=job.mode,
        precision=job.precision,
        runtime=job.runtime,
        optimizer=job.effective_optimizer,
        framework=job.framework or "torch",
        framework_version=release_number(job.framework_version),
    )


def job_graph(graph: str, batch: int, mode: Mode) -> Graph:
    """The graph that a job names. Raises InvalidData, and what reading a file raises."""
    if graph.split("--")[0] in ARCHITECTURES:
        try:
            return built_graph(graph, batch, mode)
        except (TypeError, ValueError) as error:
            raise InvalidData(f"graph {graph!r}: {error}") from None
    return read_graph(Path(graph), batch=batch)


def _cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _check_header(path: Path, header: Iterable[str]) -> None:
    names = [name.strip() for name in header]
    for name in names:
        if name not in (*_COLUMNS, "time_ms"):
            near = get_close_matches(name, _COLUMNS, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(_COLUMNS)}"
            raise InvalidData(f"{path}: column {name!r} is unknown{hint}", file=path)
    if "graph" not in names or not {"time_s", "time_ms"} & set(names):
        raise InvalidData(
            f"{path}: the first line names {', '.join(names) or 'no columns'}; expected at least graph and "
            "time_s (or time_ms)",
            file=path,
        )


def _job(cells: dict[str, str], line: int, folder: Path, wrong: list[str]) -> TimedJob | None:
    """A job, or None with the reasons in `wrong`."""
    before = len(wrong)
    facts: dict[str, Any] = {"line": line}
    if milliseconds := cells.pop("time_ms", ""):
        found = _number("time_ms", milliseconds, float, 0.0, line, wrong)
        facts["time_s"] = None if found is None else found * 1e-3
    for name, text in cells.items():
        if not text:
            continue
        if name in _NUMBERS:
            facts[name] = _number(name, text, *_NUMBERS[name], line, wrong)
        elif name in _CHOICES:
            try:
                facts[name] = _CHOICES[name](text)
            except (UnknownName, InvalidPlan) as error:
                wrong.append(f"line {line}: {error.message}")
        else:
            facts[name] = text
    facts["graph"] = _graph(facts.get("graph", ""), folder, line, wrong)
    if "time_s" not in facts:
        wrong.append(f"line {line}: no time; expected seconds in time_s or milliseconds in time_ms")
    return TimedJob(**facts) if len(wrong) == before else None


def _number(name: str, text: str, kind: type, above: float, line: int, wrong: list[str]) -> float | None:
    try:
        value = kind(text)
    except ValueError:
        value = None
    # NaN compares false.
    if value is None or not above < value < 1e12:
        expected = "a whole number" if kind is int else "a number"
        wrong.append(f"line {line}: {name} is {text!r}; expected {expected} above {max(above, 0):g}")
        return None
    return float(value) if kind is float else value


def _graph(text: str, folder: Path, line: int, wrong: list[str]) -> str:
    if text.split("--")[0] in ARCHITECTURES:
        return text
    path = folder / text
    if not text or not path.is_file():
        near = get_close_matches(text.split("--")[0], ARCHITECTURES, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        wrong.append(f"line {line}: graph {text!r} is no file beside the CSV and no architecture{hint}")
    return str(path)
