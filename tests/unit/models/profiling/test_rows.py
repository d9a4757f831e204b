"""Timed jobs as CSV: defaults, units, and every bad line named."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.errors import InvalidData
from predictor.models.profiling.rows import TimedJob, job_graph, measured_row, read_jobs, write_jobs
from predictor.types import Mode, Optimizer, Precision


def written(folder: Path, text: str) -> Path:
    path = folder / "rows.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_graph_and_time_are_enough(tmp_path: Path) -> None:
    [job] = read_jobs(written(tmp_path, "graph,time_ms\nresnet18,12.5\n"))
    assert (job.graph, job.time_s, job.batch, job.mode, job.line) == ("resnet18", 0.0125, 1, Mode.INFER, 2)
    assert job.effective_optimizer is Optimizer.NONE


def test_what_is_written_is_read(tmp_path: Path) -> None:
    job = TimedJob("resnet18", 0.5, 8, Mode.TRAIN, Precision.AMP, Optimizer.ADAM, device="t4", repeats=9)
    path = tmp_path / "rows.csv"
    write_jobs(path, [job])
    [again] = read_jobs(path)
    assert again == TimedJob(**{name: getattr(job, name) for name in job.__slots__ if name != "line"}, line=2)


def test_files_are_found_beside_the_table(tmp_path: Path) -> None:
    source = Path(__file__).parents[4] / "examples" / "mobilenet_v2.onnx"
    (tmp_path / "model.onnx").write_bytes(source.read_bytes())
    [job] = read_jobs(written(tmp_path, "graph,time_s,batch\nmodel.onnx,0.1,4\n"))
    assert job_graph(job.graph, job.batch, job.mode).batch == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph,time_s,bacth\nresnet18,1,2\n", "'bacth' is unknown; did you mean batch"),
        ("graph\nresnet18\n", "expected at least graph and time_s"),
        ("graph,time_s\nresnet17,1\n", "line 2: graph 'resnet17'.*did you mean resnet1"),
        ("graph,time_s\nresnet18,fast\n", "line 2: time_s is 'fast'; expected a number above 0"),
        ("graph,time_s\nresnet18,nan\n", "line 2: time_s is 'nan'"),
        ("graph,time_s\nresnet18,\n", "line 2: no time"),
        ("graph,time_s,batch\nresnet18,1,1.5\n", "line 2: batch is '1.5'; expected a whole number above 0"),
        ("graph,time_s,mode\nresnet18,1,trian\n", "line 2:.*trian.*train"),
        ("graph,time_s\nresnet18,1,2,3\n", "line 2: 2 cells more"),
        ("graph,time_s\n", "holds no rows"),
        ("", "no columns"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidData, match=message):
        read_jobs(written(tmp_path, text))


def test_every_bad_line_is_named_at_once(tmp_path: Path) -> None:
    text = "graph,time_s\nresnet18,-1\nresnet18,0.1\nnothing,0.1\n"
    with pytest.raises(InvalidData, match=r"line 2.*line 4"):
        read_jobs(written(tmp_path, text))


def test_bytes_are_no_table(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidData, match="cannot be read"):
        read_jobs(path)


def test_bad_options_of_an_architecture_are_an_error() -> None:
    with pytest.raises(InvalidData, match="sise"):
        job_graph("resnet18--sise=3", 1, Mode.INFER)
    with pytest.raises(InvalidData, match="resnet18--image"):
        job_graph("resnet18--image", 1, Mode.INFER)


def test_a_job_is_a_row_of_the_corpus() -> None:
    row = measured_row(TimedJob("resnet18--image=64", 0.5, device="rtx-3090-24gb", framework_version="2.4.1"))
    assert (row.family, row.device_group, row.framework_version) == ("resnet18", "rtx3090", 2.04)
    assert measured_row(TimedJob("resnet18", 0.5, framework_version="nightly")).framework_version == 0.0
