from __future__ import annotations

import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost

from predictor.errors import InvalidBundle, OutputNotWritable
from predictor.models.bundle import MANIFEST_NAME, Bundle, TrainedModel, _identity, write_bundle


@pytest.fixture(scope="module")
def model() -> TrainedModel:
    x = np.random.default_rng(0).random((200, 3)).astype(np.float32)
    booster = xgboost.train({"nthread": 1}, xgboost.DMatrix(x, x[:, 0] * 3), 4)
    return TrainedModel({"main": bytes(booster.save_raw("ubj"))}, {"scale": 1.5})


def test_what_was_written_is_read(model: TrainedModel, tmp_path: Path) -> None:
    identity = write_bundle(tmp_path / "b", {"m": model}, {"seed": 3})
    bundle = Bundle.load(tmp_path / "b")
    assert bundle.id == identity
    assert bundle.models == ("m",)
    assert bundle.params("m") == {"scale": 1.5}
    x = np.ones((2, 3), dtype=np.float32)
    expected = xgboost.Booster(model_file=bytearray(model.boosters["main"])).inplace_predict(x)
    np.testing.assert_array_equal(bundle.booster("m", "main").inplace_predict(x), expected)
    assert pickle.loads(pickle.dumps(bundle)).id == identity


def test_the_id_is_that_of_the_contents(model: TrainedModel, tmp_path: Path) -> None:
    first = write_bundle(tmp_path / "a", {"m": model}, {"seed": 3})
    again = write_bundle(tmp_path / "b", {"m": model}, {"seed": 3})
    other = write_bundle(tmp_path / "c", {"m": model}, {"seed": 4})
    assert first == again != other


def test_versions_of_libraries_are_kept_but_change_no_id(model: TrainedModel, tmp_path: Path) -> None:
    blob = model.boosters["main"]
    assert blob[-8:] == b"\x03" + b"".join(b"i" + bytes([n]) for n in _version()) + b"}"
    newer = TrainedModel({"main": blob[:-2] + bytes([_version()[2] + 1]) + b"}"}, model.params)
    first = write_bundle(tmp_path / "a", {"m": model}, {"libraries": {"xgboost": "3.2.0"}})
    second = write_bundle(tmp_path / "b", {"m": newer}, {"libraries": {"xgboost": "3.2.1"}})
    assert first == second
    assert Bundle.load(tmp_path / "b").manifest["libraries"] == {"xgboost": "3.2.1"}
    assert Bundle.load(tmp_path / "b").booster("m", "main").num_boosted_rounds() == 4
    other = TrainedModel({"main": blob.replace(b"num_trees", b"num_treez")}, model.params)
    assert write_bundle(tmp_path / "c", {"m": other}, {}) != first


def _version() -> list[int]:
    return [int(part) for part in xgboost.__version__.split(".")[:3]]


def test_a_failed_replacement_keeps_the_old_bundle(
    model: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = write_bundle(tmp_path / "b", {"m": model}, {"seed": 1})
    replace = Path.replace

    def interrupted(self: Path, target: Path) -> Path:
        if self.name.endswith(".new"):
            raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_bundle(tmp_path / "b", {"m": model}, {"seed": 2})
    assert Bundle.load(tmp_path / "b").id == before
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_bundle_replaces_a_bundle_but_nothing_else(model: TrainedModel, tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", {"m": model, "old": model}, {})
    write_bundle(tmp_path / "b", {"m": model}, {})
    assert Bundle.load(tmp_path / "b").models == ("m",)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("keep me")
    with pytest.raises(OutputNotWritable, match="is no bundle"):
        write_bundle(tmp_path / "mine", {"m": model}, {})
    assert (tmp_path / "mine" / "file").read_text() == "keep me"


def test_an_unwritable_place_is_one_error(model: TrainedModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputNotWritable, match="cannot be written"):
        write_bundle(tmp_path / "file" / "b", {"m": model}, {})


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda b: (b / MANIFEST_NAME).unlink(), "no bundle there"),
        (lambda b: (b / MANIFEST_NAME).write_text("not json"), "cannot be read"),
        (lambda b: (b / MANIFEST_NAME).write_text("[]"), "expected 'perfcast.bundle/1'"),
        (lambda b: _edit(b, lambda m: m.update(schema="other/9")), "schema 'other/9'"),
        (lambda b: _edit(b, lambda m: m["models"]["m"]["params"].update(scale=9)), "do not match the id"),
    ],
)
def test_damage_is_named(damage, text: str, model: TrainedModel, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write_bundle(tmp_path / "b", {"m": model}, {})
    damage(tmp_path / "b")
    with pytest.raises(InvalidBundle, match=text):
        Bundle.load(tmp_path / "b")


def _edit(folder: Path, change) -> None:  # type: ignore[no-untyped-def]
    manifest = json.loads((folder / MANIFEST_NAME).read_text())
    change(manifest)
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest))


def test_a_damaged_booster_is_found_when_it_is_used(model: TrainedModel, tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", {"m": model}, {})
    bundle = Bundle.load(tmp_path / "b")
    for blob, text in ((b"x", "is no booster"), (zlib.compress(b"x"), "content hash is")):
        (tmp_path / "b" / "m.main.ubj.z").write_bytes(blob)
        with pytest.raises(InvalidBundle, match=text):
            bundle.booster("m", "main")
    (tmp_path / "b" / "m.main.ubj.z").unlink()
    with pytest.raises(InvalidBundle, match="cannot be read"):
        bundle.booster("m", "main")


def test_bare_boosters_of_the_first_release_are_read(model: TrainedModel, tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", {"m": model}, {})
    (tmp_path / "b" / "m.main.ubj.z").unlink()
    (tmp_path / "b" / "m.main.ubj").write_bytes(model.boosters["main"])

    def bare(manifest: dict[str, Any]) -> None:
        manifest["models"]["m"]["boosters"]["main"]["file"] = "m.main.ubj"
        manifest["id"] = _identity(manifest)

    _edit(tmp_path / "b", bare)
    found = Bundle.load(tmp_path / "b").booster("m", "main")
    assert bytes(found.save_raw("ubj")) == model.boosters["main"]


def test_absent_names_are_named(model: TrainedModel, tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", {"m": model}, {})
    bundle = Bundle.load(tmp_path / "b")
    with pytest.raises(InvalidBundle, match="no model 'x'; it holds m"):
        bundle.params("x")
    with pytest.raises(InvalidBundle, match="no booster 'x'"):
        bundle.booster("m", "x")


def test_a_model_that_was_trained_on_something_else_is_refused(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", {"step": TrainedModel(params={"columns": ["a", "b"], "schema": "x"})}, {})
    bundle = Bundle.load(tmp_path / "b")
    assert bundle.matching("other", columns=("a",)) is None
    assert bundle.matching("step", columns=("a", "b"), schema="x") == bundle.params("step")
    with pytest.raises(InvalidBundle, match="step was trained on other columns"):
        bundle.matching("step", columns=("a",))
    with pytest.raises(InvalidBundle, match="step was trained on other feature schema"):
        bundle.matching("step", feature_schema="y")
