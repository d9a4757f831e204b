"""Overlays: some models of their own, all others from the bundle that they extend."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from predictor.errors import InvalidBundle
from predictor.models.bundle import (
    DEFAULT_PATH,
    MANIFEST_NAME,
    Bundle,
    TrainedModel,
    write_bundle,
    write_overlay,
)


@pytest.fixture
def base(tmp_path: Path) -> Bundle:
    write_bundle(tmp_path / "base", {"m": TrainedModel(params={"scale": 1.5})}, {})
    return Bundle.load(tmp_path / "base")


def test_models_come_from_either(base: Bundle, tmp_path: Path) -> None:
    identity = write_overlay(tmp_path / "over", base, {"c": TrainedModel(params={"factor": 2.0})})
    over = Bundle.load(tmp_path / "over")
    assert over.id == identity != base.id
    assert set(over.models) == {"c", "m"}
    assert (over.params("c"), over.params("m")) == ({"factor": 2.0}, {"scale": 1.5})
    assert over.boosters("m") == ()
    assert pickle.loads(pickle.dumps(over)).params("m") == {"scale": 1.5}


def test_an_overlay_of_an_overlay_keeps_what_it_does_not_replace(base: Bundle, tmp_path: Path) -> None:
    write_overlay(tmp_path / "one", base, {"a": TrainedModel(params={"v": 1}), "b": TrainedModel()})
    write_overlay(tmp_path / "two", Bundle.load(tmp_path / "one"), {"a": TrainedModel(params={"v": 2})})
    two = Bundle.load(tmp_path / "two")
    assert two.params("a") == {"v": 2}
    assert set(two.models) == {"a", "b", "m"}
    assert two.base is not None
    assert two.base.path == base.path


def test_a_base_that_changed_is_an_error(base: Bundle, tmp_path: Path) -> None:
    write_overlay(tmp_path / "over", base, {"c": TrainedModel()})
    write_bundle(tmp_path / "base", {"m": TrainedModel(params={"scale": 9.0})}, {})
    with pytest.raises(InvalidBundle, match="calibrate again"):
        Bundle.load(tmp_path / "over")


def test_the_bundle_that_ships_is_named_by_its_id_alone(tmp_path: Path) -> None:
    write_overlay(tmp_path / "over", Bundle.load(), {"c": TrainedModel()})
    manifest = json.loads((tmp_path / "over" / MANIFEST_NAME).read_text(encoding="utf-8"))
    assert set(manifest["extends"]) == {"id"}
    over = Bundle.load(tmp_path / "over")
    assert over.base is not None
    assert over.base.path == DEFAULT_PATH
    with pytest.raises(InvalidBundle, match="no model 'z'"):
        over.params("z")
