"""Predictors whose bundle has not seen a group: one model of a bundle replaced, the rest as shipped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from predictor.api import Predictor
from predictor.models.bundle import Bundle, TrainedModel, write_bundle


def stored_model(bundle: Bundle, name: str) -> TrainedModel:
    """A model of a bundle as it was written. Raises InvalidBundle when it holds no such model."""
    boosters = {key: bytes(bundle.booster(name, key).save_raw("ubj")) for key in bundle.boosters(name)}
    return TrainedModel(boosters, bundle.params(name))


def predictor_with(bundle: Bundle, replaced: Mapping[str, TrainedModel], folder: Path) -> Predictor:
    """The public Predictor on `bundle` with some models replaced; the new bundle is written to `folder`."""
    models = {name: replaced.get(name) or stored_model(bundle, name) for name in bundle.models}
    write_bundle(folder, models, {"derived_from": bundle.id})
    return Predictor.load(folder)


def predictor_without(bundle: Bundle, name: str, folder: Path) -> Predictor:
    """The public Predictor on `bundle` without one optional model; the new bundle is written to `folder`."""
    models = {key: stored_model(bundle, key) for key in bundle.models if key != name}
    write_bundle(folder, models, {"derived_from": bundle.id})
    return Predictor.load(folder)
