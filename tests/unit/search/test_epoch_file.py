"""Learning curves from files: seeds averaged, batches that fail left out, faults named."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.errors import InvalidInput
from predictor.search.epoch_file import load_epochs, read_epochs
from predictor.search.time_to_target import EpochCurve

ZEUS = """batch_size,target_metric,target_epoch
64,0.6,8
64,0.7,10
64,0.7,12
256,0.7,14
256,0.7,16
1024,0.7,30
1024,0.7,
"""


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "curve.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_seeds_are_averaged_and_failing_batches_left_out(tmp_path: Path) -> None:
    table = load_epochs(file(tmp_path, ZEUS), target=0.7)
    assert table.epochs_by_batch == ((64.0, 11.0), (256.0, 15.0))
    assert 11.0 < table(128) < 15.0


def test_a_plain_table_needs_no_target(tmp_path: Path) -> None:
    assert load_epochs(file(tmp_path, "batch,epochs\n32,3\n"))(32) == 3.0


def test_two_numbers_are_a_curve(tmp_path: Path) -> None:
    curve = read_epochs("10:2048")
    assert curve == EpochCurve(10.0, 2048.0)
    assert read_epochs(str(file(tmp_path, "batch,epochs\n32,3\n")))(64) == 3.0


@pytest.mark.parametrize(
    ("text", "target", "fault"),
    [
        ("size,epochs\n1,2\n", None, "no column 'batch'"),
        ("batch,epochs\n1,many\n", None, "line 2"),
        ("batch,epochs\n1,\n", None, "no batch reaches"),
        ("batch,epochs\n1,2\n", 0.5, "target_metric"),
        (ZEUS, None, "targets: 0.6, 0.7"),
        (ZEUS, 0.9, "targets: 0.6, 0.7"),
        ("", None, "no column"),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, target: float | None, fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault):
        load_epochs(file(tmp_path, text), target)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_epochs(str(tmp_path / "no.csv"))


def test_runs_of_several_workloads_are_not_mixed(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        "dataset,network,batch_size,target_metric,target_epoch\n"
        "imagenet,resnet50,256,0.7,20\ncifar100,shufflenetv2,256,0.7,nan\n",
    )
    with pytest.raises(InvalidInput, match=r"2 workloads.*cifar100 shufflenetv2, imagenet resnet50"):
        load_epochs(path, 0.7)
    for name in ("imagenet", "resnet50"):
        assert load_epochs(path, 0.7, name)(256) == 20.0
    with pytest.raises(InvalidInput, match="no such workload"):
        load_epochs(path, 0.7, "squad")
