from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from io import BytesIO
from pathlib import Path

import pytest
from typer.testing import CliRunner

from predictor.api.power_sweep import SweepPoint
from predictor.cli.main import app
from predictor.cli.sweep_picture import Scale, sweep_html, sweep_png, sweep_svg
from predictor.types import Interval

RUNNER = CliRunner()
MODEL = "examples/resnet50.onnx"


def run(*arguments: str) -> str:
    result = RUNNER.invoke(app, ["sweep", MODEL, "--device", "v100-pcie-32gb", "--mode", "train", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def point(cap: float, batch: int, time_s: float, joules: float, front: bool = False) -> SweepPoint:
    return SweepPoint(
        cap,
        batch,
        batch,
        Interval.exact(time_s),
        Interval.exact(cap),
        Interval.exact(joules),
        True,
        False,
        front,
    )


def test_a_lower_cap_is_slower_and_draws_less() -> None:
    found = json.loads(run("--power-limit", "100,150", "--power-limit", "250", "--batch", "64", "-o", "json"))
    points = found["points"]
    assert [p["power_limit_w"] for p in points] == [100.0, 150.0, 250.0]
    times = [p["iteration_time_s"]["value"] for p in points]
    watts = [p["average_power_w"]["value"] for p in points]
    assert times == sorted(times, reverse=True)
    assert watts == sorted(watts)
    assert found["energy_scope"] == "device"
    for p in points:
        product = p["iteration_time_s"]["value"] * p["average_power_w"]["value"]
        assert p["energy_j"]["value"] == pytest.approx(product)
        assert p["energy_per_sample_j"] == pytest.approx(p["energy_j"]["value"] / 64)


def test_the_front_holds_the_fastest_and_the_least_energy() -> None:
    points = json.loads(run("--batch", "16,64", "-o", "json"))["points"]
    assert len(points) == 14
    front = [p for p in points if p["on_front"]]
    assert min(points, key=lambda p: p["time_per_sample_s"]) in front
    assert min(points, key=lambda p: p["energy_per_sample_j"]) in front
    for p in points:
        better = [
            q
            for q in points
            if q["time_per_sample_s"] < p["time_per_sample_s"]
            and q["energy_per_sample_j"] < p["energy_per_sample_j"]
        ]
        assert p["on_front"] == (not better)


def test_a_measured_run_moves_the_sweep() -> None:
    caps = ("--power-limit", "150,250", "--batch", "64", "-o", "json")
    points = json.loads(run(*caps, "--measured", "250:0.1875:223"))["points"]
    assert points[1]["iteration_time_s"]["value"] == pytest.approx(0.1875, rel=0.01)
    assert points[1]["average_power_w"]["value"] == pytest.approx(223, rel=0.02)
    # Zeus measured 1.16 times the epoch time and 146 W at 150 W.
    assert points[0]["iteration_time_s"]["value"] == pytest.approx(1.16 * 0.1875, rel=0.03)
    assert points[0]["average_power_w"]["value"] == pytest.approx(146, rel=0.03)
    assert all(p["anchored"] for p in points)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--power-limit", "many"), "expected watts"),
        (("--power-limit", "-5"), "watts above 0"),
        (("--measured", "250:0.2"), "W:SECONDS:WATTS"),
        (("--batch", "x"), "whole numbers"),
        (("--picture", "sweep.bmp"), ".svg"),
    ],
)
def test_bad_flags_say_what_was_expected(arguments: tuple[str, ...], problem: str) -> None:
    result = RUNNER.invoke(app, ["sweep", MODEL, "--device", "v100-pcie-32gb", *arguments])
    assert result.exit_code in (2, 3)
    assert problem in " ".join((result.output + result.stderr).split())


def test_pictures_are_files_of_their_own(tmp_path: Path) -> None:
    for name in ("sweep.svg", "sweep.html"):
        run("--batch", "64", "--picture", str(tmp_path / name))
    root = ET.fromstring((tmp_path / "sweep.svg").read_text(encoding="utf-8"))
    circles = root.findall(".//{http://www.w3.org/2000/svg}circle/{http://www.w3.org/2000/svg}title")
    assert len(circles) == 7
    page = (tmp_path / "sweep.html").read_text(encoding="utf-8")
    assert page.count("<tr") == 8
    assert "http://www.w3.org/2000/svg" in page
    assert "<script" not in page


def test_every_dot_lies_inside_the_frame() -> None:
    points = [point(100, 8, 2.0, 100.0), point(200, 8, 1.0, 150.0, front=True), point(200, 16, 1.5, 160.0)]
    root = ET.fromstring(sweep_svg(points, "a < b & c"))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for circle in root.findall("{http://www.w3.org/2000/svg}circle"):
        assert 0 < float(circle.attrib["cx"]) < width
        assert 0 < float(circle.attrib["cy"]) < height
    assert b"a &lt; b &amp; c" in sweep_html(points, "a < b & c")


def test_the_picture_in_pixels_shows_dots_of_the_front_in_their_colour() -> None:
    image = pytest.importorskip("PIL.Image")
    points = [point(100, 8, 2.0, 100.0), point(200, 8, 1.0, 150.0, front=True), point(200, 16, 1.5, 160.0)]
    data = sweep_png(points, "a sweep")
    with image.open(BytesIO(data)) as picture:
        assert picture.size == (2 * 860, 2 * 540)
        root = ET.fromstring(sweep_svg(points, "a sweep"))
        dots = root.findall("{http://www.w3.org/2000/svg}circle")
        for dot in dots[: len(points)]:
            colour = picture.getpixel((2 * float(dot.attrib["cx"]), 2 * float(dot.attrib["cy"])))
            assert f"#{colour[0]:02x}{colour[1]:02x}{colour[2]:02x}" == dot.attrib["fill"].lower()


def test_ticks_are_round_and_inside() -> None:
    for low, high in ((0.003, 0.0081), (12.0, 17.5), (0.0, 1e-6)):
        ticks = Scale(low, high, 0.0, 100.0).ticks()
        assert 3 <= len(ticks) <= 8
        assert low <= ticks[0] < ticks[-1] <= high * (1 + 1e-9)


def test_predict_names_carbon_and_cost() -> None:
    arguments = ["predict", MODEL, "--device", "h100-sxm-80gb", "-b", "8", "-o", "json"]
    result = RUNNER.invoke(app, [*arguments, "--site", "232", "--price-per-hour", "2.5", "--pue", "1.1"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    print_ = found["footprint"]
    assert print_["scope"] == "facility"
    energy, grams = print_["energy_j"]["value"], print_["carbon_gco2e"]["value"]
    assert grams == pytest.approx(energy / 1e6 * 64.44, rel=1e-4)
    assert print_["cost_usd"]["value"] == pytest.approx(2.5 * found["iteration_time_s"]["value"] / 3600)
    shown = RUNNER.invoke(app, [*arguments[:-2], "--site", "de"])
    assert "CO2e" in shown.stdout
    assert "unknown" in shown.stdout
    wrong = RUNNER.invoke(app, [*arguments, "--site", "nowhere"])
    assert wrong.exit_code == 3
