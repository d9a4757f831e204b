"""Measured jobs move and narrow the answers for their device, and for no other."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from predictor.api import Predictor
from predictor.api.calibrate import CalibrationResult, calibrate, load_prior
from predictor.cli.main import app
from predictor.cli.render_calibration import calibration_view
from predictor.errors import InvalidData
from predictor.hardware.catalog import find_device
from predictor.models.bundle import Bundle
from predictor.models.corpus.built_graphs import built_graph
from predictor.models.device_calibration import stored_calibrations
from predictor.models.profiling.rows import TimedJob, write_jobs
from predictor.request import PredictionRequest
from predictor.types import Mode, Optimizer, Prediction

DEVICE, OTHER = "rtx-2080-ti-11gb", "t4"
GRAPHS = ("resnet18", "mobilenet_v2", "vgg11")


def request(graph: str, device: str, mode: Mode = Mode.INFER) -> PredictionRequest:
    optimizer = Optimizer.SGD if mode is Mode.TRAIN else Optimizer.NONE
    return PredictionRequest(built_graph(graph, 32, mode), device, mode=mode, optimizer=optimizer)


@pytest.fixture(scope="module")
def before() -> Predictor:
    return Predictor.load()


@pytest.fixture(scope="module")
def slow_jobs(before: Predictor) -> list[TimedJob]:
    """Everything on this device takes half longer than predicted."""
    jobs = []
    for mode in Mode:
        for graph in GRAPHS:
            seconds = before.predict(request(graph, DEVICE, mode)).iteration_time_s.value
            jobs.append(TimedJob(graph, 1.5 * seconds, 32, mode))
    return jobs


@pytest.fixture(scope="module")
def calibrated(slow_jobs: list[TimedJob], tmp_path_factory: pytest.TempPathFactory) -> CalibrationResult:
    return calibrate(slow_jobs, DEVICE, out=tmp_path_factory.mktemp("calibrated") / "overlay")


@pytest.fixture(scope="module")
def after(calibrated: CalibrationResult) -> Predictor:
    assert calibrated.path is not None
    return Predictor.load(calibrated.path)


def width(answer: Prediction) -> float:
    return answer.iteration_time_s.high / answer.iteration_time_s.low


def test_answers_follow_the_measurements(
    before: Predictor, after: Predictor, calibrated: CalibrationResult
) -> None:
    assert after.bundle_id == calibrated.bundle != before.bundle_id
    first, second = (p.predict(request("resnet50", DEVICE)) for p in (before, after))
    ratio = second.iteration_time_s.value / first.iteration_time_s.value
    assert 1.3 < ratio < 1.6
    assert width(second) <= width(first) * (1 + 1e-12)
    assert sum(second.time_breakdown_s.values()) == pytest.approx(second.iteration_time_s.value)
    assert after.predict(request("resnet50", OTHER)) == replace(
        before.predict(request("resnet50", OTHER)), bundle=after.bundle_id
    )


def test_a_name_changes_nothing(after: Predictor) -> None:
    renamed = replace(find_device(DEVICE), id="mine", name="Mine")
    one, two = (
        after.predict(replace(request("resnet18", DEVICE), device=device)).iteration_time_s
        for device in (DEVICE, renamed)
    )
    assert one == two


def test_a_second_device_joins_the_first(
    slow_jobs: list[TimedJob], calibrated: CalibrationResult, tmp_path: Path
) -> None:
    calibrate(slow_jobs[:2], OTHER, bundle=calibrated.path, out=tmp_path / "two")
    first, second = stored_calibrations(Bundle.load(tmp_path / "two"))
    assert first.to_json() == calibrated.calibration.to_json()
    assert second.is_of(find_device(OTHER))
    # Calibrating again replaces, it does not multiply.
    again = calibrate(slow_jobs, DEVICE, bundle=tmp_path / "two", out=tmp_path / "three")
    assert again.calibration.to_json() == calibrated.calibration.to_json()
    assert len(stored_calibrations(Bundle.load(tmp_path / "three"))) == 2


def test_the_left_out_error_is_of_the_other_jobs(calibrated: CalibrationResult) -> None:
    for item in calibrated.jobs:
        assert item.left_out_s is not None
        assert abs(item.left_out_s / item.job.time_s - 1) < abs(item.before_s / item.job.time_s - 1)


def test_a_job_that_cannot_be_priced_is_named_by_its_line(slow_jobs: list[TimedJob]) -> None:
    bad = replace(slow_jobs[0], graph="nowhere.onnx", line=7)
    with pytest.raises(InvalidData, match=r"line 7: nowhere\.onnx"):
        calibrate([bad], DEVICE)


def test_the_packaged_prior_says_where_it_is_from(tmp_path: Path) -> None:
    assert load_prior().noise > 0
    (tmp_path / "prior.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InvalidData, match="no calibration prior"):
        load_prior(tmp_path / "prior.json")


def test_the_command_prints_and_writes(slow_jobs: list[TimedJob], tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    write_jobs(rows, slow_jobs[:1])
    command = ["calibrate", str(rows), "--device", DEVICE, "--out", str(tmp_path / "overlay")]
    answer = json.loads(CliRunner().invoke(app, [*command, "--output", "json"]).stdout)
    assert answer["schema"] == "perfcast.calibration/1"
    assert answer["jobs"][0]["left_out_s"] is None
    assert Bundle.load(tmp_path / "overlay").id == answer["bundle"]


def test_a_slip_of_unit_is_asked_about(slow_jobs: list[TimedJob], tmp_path: Path) -> None:
    rows, command = (
        tmp_path / "rows.csv",
        ["calibrate", "", "--device", DEVICE, "--out", str(tmp_path / "out")],
    )
    for job, warned in (
        (slow_jobs[0], False),
        (replace(slow_jobs[0], time_s=1e3 * slow_jobs[0].time_s), True),
    ):
        write_jobs(rows, [job])
        said = CliRunner().invoke(app, [command[0], str(rows), *command[2:]]).stderr
        assert ("is its time in seconds" in said) is warned


def test_the_table_shows_every_job(calibrated: CalibrationResult) -> None:
    console = Console(width=100, record=True, file=StringIO())
    console.print(calibration_view(calibrated))
    text = console.export_text()
    assert "mean error" in text
    assert text.count("resnet18") == 2
