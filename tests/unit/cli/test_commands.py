"""Commands in process, against the fake forecaster."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import predictor.api
import predictor.cli.console
from predictor.cli.main import app
from predictor.cli.output import write_bytes
from predictor.errors import OutputNotWritable, PerfcastError
from predictor.hardware.catalog import list_clusters
from tests.contract.fake import FakePredictor
from tests.contract.models import custom_op, perceptron, sequence_model

A100 = ("--device", "a100-pcie-40gb")


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        predictor.api.Predictor, "load", classmethod(lambda cls, bundle=None: FakePredictor())
    )
    for name in ("PERFCAST_SERVER", "PERFCAST_TOKEN", "PERFCAST_DATA"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.onnx"
    path.write_bytes(perceptron().SerializeToString())
    return str(path)


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def error_line(result: Result) -> str:
    """The one line that an error is."""
    assert "Traceback" not in result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    return line


def test_a_table_says_what_a_person_asks(model: str) -> None:
    result = run("predict", model, *A100, "--batch", "8", "--mode", "train")
    assert result.exit_code == 0
    for word in (
        "iteration",
        "throughput",
        "peak memory",
        "fits",
        "energy",
        "bundle",
        "batch 8",
        "model.onnx",
    ):
        assert word in result.stdout
    assert "\x1b" not in result.stdout
    assert all(line == line.rstrip() or not line.isspace() for line in result.stdout.splitlines())


def test_standard_input_is_a_model(model: str) -> None:
    piped = run("predict", "-", *A100, "--output", "json", stdin=Path(model).read_bytes())
    assert json.loads(piped.stdout) == json.loads(run("predict", model, *A100, "--output", "json").stdout)


def test_warnings_go_to_standard_error(model: str) -> None:
    result = run("predict", model, *A100, "--output", "json")
    assert "warning: numbers of a test" in result.stderr
    json.loads(result.stdout)


def test_out_holds_the_same_json(model: str, tmp_path: Path) -> None:
    target = tmp_path / "answer.json"
    result = run("predict", model, *A100, "--output", "json", "--out", str(target))
    assert json.loads(target.read_text()) == json.loads(result.stdout)


@pytest.mark.parametrize("name", ["absent/answer.json", "folder"])
def test_an_output_that_cannot_be_written(name: str, model: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target = tmp_path / name
    result = run("predict", model, *A100, "--out", str(target))
    assert result.exit_code == 3
    assert str(target) in error_line(result)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "model.onnx"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "kept.json"
    target.write_text("old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputNotWritable, match="No space left"):
        write_bytes(b"new", target)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]
    assert target.read_text() == "old"


@pytest.mark.parametrize(
    "flags",
    [
        ("--dim", "x"),
        ("--dim", "=3"),
        ("--dim", "n=three"),
        ("--input-shape", "x=1x"),
        ("--input-shape", "x"),
        ("--batch", "many"),
        ("--output", "xml"),
        ("--nonsense",),
        ("--server", "a:1", "--bundle", "b"),
    ],
)
def test_usage_errors_exit_2(flags: tuple[str, ...], model: str) -> None:
    result = run("predict", model, *A100, *flags)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_does_not_fit_is_an_answer_until_asked(tmp_path: Path) -> None:
    path = tmp_path / "wide.onnx"
    path.write_bytes(sequence_model().SerializeToString())
    arguments = ("predict", str(path), *A100, "--batch", "1000000", "--dim", "sequence=2000")
    result = run(*arguments)
    assert result.exit_code == 0
    assert "does not fit" in result.stdout
    strict = run(*arguments, "--require-feasible")
    assert strict.exit_code == 4
    assert "wide.onnx needs" in error_line(strict)
    assert "does not fit" in strict.stdout


def test_strict_coverage_exits_5(tmp_path: Path) -> None:
    path = tmp_path / "odd.onnx"
    path.write_bytes(custom_op().SerializeToString())
    result = run("predict", str(path), *A100, "--strict")
    assert result.exit_code == 5
    assert "Frobnicate" in error_line(result)
    assert run("graph", "check", str(path)).exit_code == 0
    assert run("graph", "check", str(path), "--strict").exit_code == 5


def test_no_server_exits_6(model: str) -> None:
    result = run("predict", model, *A100, "--server", "127.0.0.1:1", "--timeout", "1")
    assert result.exit_code == 6
    assert "127.0.0.1:1" in error_line(result)


def test_a_bug_is_one_line_and_exits_1(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, request: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(FakePredictor, "predict", broken)
    result = run("predict", model, *A100)
    assert result.exit_code == 1
    assert "--debug" in error_line(result)
    shown = run("--debug", "predict", model, *A100)
    assert isinstance(shown.exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("module", "extra"), [("polars", "train"), ("grpc_health.v1", "server"), ("torch.fx", "torch")]
)
def test_an_absent_extra_is_named_and_no_bug(
    module: str, extra: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(self: object, request: object) -> None:
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)

    monkeypatch.setattr(FakePredictor, "predict", absent)
    result = run("predict", model, *A100)
    assert result.exit_code == 3
    assert f"pip install 'perfcast[{extra}]'" in error_line(result)
    assert "bug" not in result.stderr


def test_an_absent_package_of_no_extra_is_a_bug(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(self: object, request: object) -> None:
        raise ModuleNotFoundError("No module named 'predictor.gone'", name="predictor.gone")

    monkeypatch.setattr(FakePredictor, "predict", absent)
    assert run("predict", model, *A100).exit_code == 1


def test_an_interrupt_exits_130(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: object, request: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FakePredictor, "predict", interrupted)
    result = run("predict", model, *A100)
    assert (result.exit_code, result.stdout) == (130, "")


def test_messages_are_one_line_whatever_they_hold(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(self: object, request: object) -> None:
        raise PerfcastError("first\nsecond \x1b[31mred")

    monkeypatch.setattr(FakePredictor, "predict", odd)
    result = run("predict", model, *A100)
    assert result.stderr == "error: first\\nsecond \\x1b[31mred\n"


def test_compare_is_a_product_with_rows_that_may_fail(model: str) -> None:
    devices = ("--device", "a100-pcie-40gb", "--device", "no-such", "--device", "t4-pcie-16gb")
    flags = (*devices, "--batch", "1", "--batch", "8", "--precision", "fp32", "--precision", "fp16")
    result = run("compare", model, *flags, "--output", "json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["schema"] == "perfcast.comparison/1"
    asked = [(item["device"], item["precision"], item["batch"]) for item in answer["candidates"]]
    assert len(asked) == len(set(asked)) == 12
    failed = [item for item in answer["candidates"] if "error" in item]
    assert {item["device"] for item in failed} == {"no-such"}
    assert failed[0]["error"]["reason"] == "DEVICE_UNKNOWN"
    assert result.stderr.count("warning: unknown device") == 1
    table = run("compare", model, *flags)
    assert "◀" in table.stdout
    assert "DEVICE_UNKNOWN" in table.stdout


def test_headings_say_what_of_the_job_is_not_the_default(model: str) -> None:
    flags = ("--weights", "int4", "--layout", "nhwc", "--torch", "2.4", "--power-limit", "200")
    said = "infer · batch 8 · fp32 · eager · weights int4 · nhwc · torch 2.4 · cap 200 W"
    for command in ("predict", "explain"):
        # Long headings break where they must.
        shown = " ".join(run(command, model, *A100, "--batch", "8", *flags).stdout.split())
        assert said in shown, command
    plain = run("predict", model, *A100, "--batch", "8").stdout.splitlines()[0]
    assert plain.endswith("infer · batch 8 · fp32 · eager")


def test_compare_counts_the_devices_of_a_plan(model: str) -> None:
    table = run("compare", model, *A100, "--batch", "8", "--dp", "2", "--weights", "int8").stdout
    assert "2 x a100-pcie-40gb" in table
    assert "weights int8" in table


@pytest.mark.parametrize("width", [80, 110, 160])
def test_compare_keeps_verdicts_at_any_width(width: int, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor.cli.console, "_PLAIN_WIDTH", width)
    table = run("compare", model, *A100, "--device", "no-such", "--batch", "8", "--batch", "9").stdout
    for word in ("◀  ", "fits", "DEVICE_UNKNOWN", "a100-pcie-40gb"):
        assert word in table
    assert ("90 % interval" in table) == (width > 80)
    assert max(map(len, table.splitlines())) <= width


@pytest.mark.parametrize("width", [60, 110])
def test_a_precision_never_stands_without_its_rate(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor.cli.console, "_PLAIN_WIDTH", width)
    table = run("devices", "list", "--kind", "tpu").stdout
    assert ("matrix" in table) == ("bf16" in table)


def test_compare_of_failures_only_is_an_error(model: str) -> None:
    result = run("compare", model, "--device", "no-such")
    assert result.exit_code == 3
    assert "no-such" in error_line(result)


def test_explain(model: str) -> None:
    result = run("explain", model, *A100, "--top", "1")
    assert "2 more" in result.stdout
    answer = json.loads(run("explain", model, *A100, "--output", "json").stdout)
    assert answer["schema"] == "perfcast.explanation/1"
    assert {row["op_type"] for row in answer["ops"]} >= {"Relu"}


def test_clusters() -> None:
    listed = json.loads(run("devices", "clusters", "--output", "json").stdout)["clusters"]
    assert {cluster["id"] for cluster in listed} == {cluster.id for cluster in list_clusters()}
    table = run("devices", "clusters").stdout
    assert all(cluster.id in table for cluster in list_clusters())
    assert "8 x a100-sxm-80gb" in table


def test_devices() -> None:
    listed = json.loads(run("devices", "list", "--output", "json").stdout)["devices"]
    phones = json.loads(run("devices", "list", "--kind", "phone", "--output", "json").stdout)["devices"]
    assert 0 < len(phones) < len(listed)
    assert "a100-pcie-40gb" in run("devices", "list").stdout
    shown = run("devices", "show", "a100-pcie-40gb")
    assert "A100" in shown.stdout
    assert "sources" in shown.stdout
    for bad in (("list", "--kind", "toaster"), ("list", "--vendor", "acme"), ("show", "b200000")):
        result = run("devices", *bad)
        assert result.exit_code == 3
        error_line(result)


def test_graph_show_counts(model: str) -> None:
    answer = json.loads(run("graph", "show", model, "--batch", "4", "--output", "json").stdout)
    assert answer["parameter_count"] == 32 * 64 + 64 * 10
    assert answer["inputs"] == [{"name": "x", "shape": [4, 32], "dtype": "float32"}]
    products = 2 * 4 * (32 * 64 + 64 * 10)
    assert products <= answer["forward_flops"] <= products + 4 * 64
    assert "2,688" in run("graph", "show", model).stdout


def test_graph_strip_keeps_the_answer(model: str, tmp_path: Path) -> None:
    target = tmp_path / "small.onnx"
    result = run("graph", "strip", model, str(target))
    assert (result.exit_code, result.stdout) == (0, "")
    assert target.stat().st_size < Path(model).stat().st_size
    answers = [run("predict", path, *A100, "--output", "json").stdout for path in (model, str(target))]
    assert answers[0] == answers[1]


def test_graph_strip_in_a_pipe(model: str) -> None:
    """A dash is standard output, not a file of that name."""
    piped = run("graph", "strip", "-", "-", stdin=Path(model).read_bytes())
    assert (piped.exit_code, piped.stderr) == (0, "")
    assert not Path("-").exists()
    answers = [
        run("predict", "-", *A100, "--output", "json", stdin=data).stdout
        for data in (Path(model).read_bytes(), piped.stdout_bytes)
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("address", ["http://localhost:50051", "grpc://a:1", " "])
def test_an_address_with_a_scheme_says_what_is_expected(address: str, model: str) -> None:
    result = run("predict", model, *A100, "--server", address)
    assert result.exit_code == 3
    assert "HOST:PORT" in error_line(result)


def test_help_tells_the_exit_codes() -> None:
    text = run("--help").output
    assert "Exit codes" in text
    for code in ("2 usage", "3 invalid input", "4 does", "5 op", "6 no server"):
        assert code in " ".join(text.split())


def test_doctor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    healthy = run("doctor")
    assert healthy.exit_code == 0, healthy.stdout
    assert "FAIL" not in healthy.stdout
    monkeypatch.setenv("PERFCAST_DATA", str(tmp_path / "absent"))
    sick = run("doctor")
    assert sick.exit_code == 3
    assert "FAIL data folder" in sick.stdout


def test_version_names_the_bundle() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("perfcast ")
    assert "bundle" in result.stdout


def test_no_command_shows_help() -> None:
    assert "Usage" in run().output


@pytest.mark.parametrize("group", [[], ["graph"], ["devices"], ["corpus"], ["study"]])
def test_lists_of_commands_say_what_each_does_in_whole_sentences(group: list[str]) -> None:
    listed = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*group, "--help"]).stdout
    assert "..." not in listed.split("Commands:")[1]


def test_flags_stand_in_sections() -> None:
    page = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["predict", "--help"]).stdout
    sections = [line.rstrip(":") for line in page.splitlines() if line.endswith(":") and line[0] != " "]
    assert sections == ["Arguments", "Options", "Job", "Plan", "Place and price", "Predictor"]
    job = page.split("Job:")[1].split("Plan:")[0]
    assert all(flag in job for flag in ("--batch", "--precision", "--jitter", "--dim", "--example-shape"))


def test_no_flag_of_a_command_means_two_things() -> None:
    def flags(command: Any, name: str) -> Iterator[tuple[str, str]]:
        for parameter in command.params:
            names = (*parameter.opts, *parameter.secondary_opts)
            yield from ((name, flag) for flag in names if flag.startswith("-"))
        for child, sub in getattr(command, "commands", {}).items():
            yield from flags(sub, f"{name} {child}")

    found = Counter(flags(typer.main.get_command(app), "perfcast"))
    assert len(found) > 100
    assert [key for key, count in found.items() if count > 1] == []
