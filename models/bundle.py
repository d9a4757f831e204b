"""A bundle: a folder with `manifest.json` and one UBJ file per booster. No pickle, nothing executable.

Boosters are stored as zlib streams: their trees shrink to two fifths and open in a tenth of a second.

The bundle's id is the sha256 of everything it says and holds, save the versions of the libraries that wrote
it: two trainings that agree have one id.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

from predictor.errors import InvalidBundle, OutputNotWritable
from predictor.models.booster import content_sha256, load_booster

BUNDLE_SCHEMA = "perfcast.bundle/1"
MANIFEST_NAME = "manifest.json"
DEFAULT_PATH = Path(__file__).with_name("data") / "default"

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

# Kept in the manifest, not part of the id: the same trees are the same bundle, whichever release grew them.
_OUTSIDE_ID = frozenset({"id", "libraries"})

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*\Z")
_COMPRESSED = ".ubj.z"
"""Ending of a booster's file; bundles of the first release hold the bare UBJ, `.ubj`."""


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """One model to store: UBJ bytes by booster name, and everything else it needs as JSON."""

    boosters: Mapping[str, bytes] = field(default_factory=dict)
    params: Mapping[str, Json] = field(default_factory=dict)


def write_bundle(path: Path, models: Mapping[str, TrainedModel], manifest_extra: Mapping[str, Json]) -> str:
    """Writes a bundle folder at `path` (replacing one that is there) and returns its id `sha256:...`.

    `manifest_extra` joins the manifest: sources, metrics, library versions, feature schema. The folder
    appears whole or not at all. Raises OutputNotWritable; ValueError on names that are no file names or
    extra keys that collide.
    """
    reserved = {"schema", "id", "models"}
    if reserved & manifest_extra.keys():
        raise ValueError(f"manifest_extra holds reserved keys {sorted(reserved & manifest_extra.keys())}")
    files: dict[str, bytes] = {}
    entries: dict[str, Json] = {}
    for name, model in sorted(models.items()):
        boosters: dict[str, Json] = {}
        for key, blob in sorted(model.boosters.items()):
            if not _NAME.match(name) or not _NAME.match(key):
                raise ValueError(f"{name}.{key}: expected lower-case letters, digits, _ and -")
            file = f"{name}.{key}{_COMPRESSED}"
            files[file] = zlib.compress(blob, 9)
            boosters[key] = {"file": file, "content_sha256": content_sha256(blob), "bytes": len(blob)}
        entries[name] = {"boosters": boosters, "params": dict(model.params)}
    manifest: dict[str, Json] = {"schema": BUNDLE_SCHEMA, **manifest_extra, "models": entries}
    manifest["id"] = identity = _identity(manifest)
    files[MANIFEST_NAME] = (json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
    _replace_folder(path, files)
    return identity


def write_overlay(path: Path, base: Bundle, models: Mapping[str, TrainedModel]) -> str:
    """A bundle folder with `models` that takes all others from `base`; returns its id.

    The base is named by its id, and by its folder unless it is the one that ships. An overlay of an overlay
    extends the same base and keeps the models that it does not replace. Raises OutputNotWritable.
    """
    root = base if base.base is None else base.base
    kept = {
        name: TrainedModel(params=base.params(name))
        for name in (base.manifest["models"] if base.base is not None else ())
        if name not in models
    }
    extends: dict[str, Json] = {"id": root.id}
    if root.path != DEFAULT_PATH:
        extends["path"] = str(root.path.resolve())
    return write_bundle(path, {**kept, **models}, {"extends": extends})


def _base_of(folder: Path, manifest: Mapping[str, Any]) -> Bundle | None:
    extends = manifest.get("extends")
    if extends is None:
        return None
    base = Bundle.load(extends.get("path"))
    if base.id != extends["id"]:
        raise InvalidBundle(
            f"{folder}: extends bundle {extends['id']}, but {base.path} holds {base.id}; calibrate again"
        )
    return base


def _identity(manifest: Mapping[str, Json]) -> str:
    content = {key: value for key, value in manifest.items() if key not in _OUTSIDE_ID}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _replace_folder(path: Path, files: Mapping[str, bytes]) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.new")
    retired = path.with_name(f".{path.name}.{os.getpid()}.old")
    try:
        if path.exists() and not (
            path.is_dir() and ((path / MANIFEST_NAME).exists() or not any(path.iterdir()))
        ):
            raise OutputNotWritable(f"{path}: exists and is no bundle; give a new or an empty folder")
        partial.mkdir(parents=True)
        for name, blob in files.items():
            (partial / name).write_bytes(blob)
        if path.exists():
            path.replace(retired)
        try:
            partial.replace(path)
        except BaseException:
            if retired.exists():
                retired.replace(path)
            raise
    except OSError as error:
        raise OutputNotWritable(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(retired, ignore_errors=True)


class Bundle:
    """A loaded bundle. The manifest is read and checked at once, a booster when it is first asked for.

    An overlay holds some models and takes the others from the bundle that it extends. Thread-safe and
    picklable (a pickle holds the path and reads the folder again).
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any], base: Bundle | None = None) -> None:
        self.path = path
        self.manifest = manifest
        self.base = base
        self._boosters: dict[tuple[str, str], Any] = {}
        self._lock = Lock()

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None) -> Bundle:
        """The bundle at `path`, or the one shipped with the package.

        Raises InvalidBundle: absent, not JSON, another schema, or contents that do not match the id.
        """
        folder = Path(path) if path is not None else DEFAULT_PATH
        file = folder / MANIFEST_NAME
        try:
            manifest = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InvalidBundle(
                f"{folder}: no bundle there ({MANIFEST_NAME} is absent); run `perfcast train`"
            ) from None
        except (OSError, ValueError) as error:
            raise InvalidBundle(f"{file}: cannot be read as a bundle manifest ({error})") from None
        if not isinstance(manifest, dict) or manifest.get("schema") != BUNDLE_SCHEMA:
            found = manifest.get("schema") if isinstance(manifest, dict) else type(manifest).__name__
            raise InvalidBundle(
                f"{file}: schema {found!r}, expected {BUNDLE_SCHEMA!r}; train the bundle again"
            )
        if manifest.get("id") != _identity(manifest):
            raise InvalidBundle(
                f"{file}: contents do not match the id; the file was altered, train or fetch it again"
            )
        return cls(folder, manifest, _base_of(folder, manifest))

    @property
    def id(self) -> str:
        """`sha256:...` of the contents."""
        return str(self.manifest["id"])

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models inside, those of an overlay's base included."""
        own = tuple(self.manifest["models"])
        return own if self.base is None else (*own, *(name for name in self.base.models if name not in own))

    def params(self, model: str) -> Mapping[str, Any]:
        """Everything of `model` that is not a booster. Raises InvalidBundle when it holds no such model."""
        if (base := self._elsewhere(model)) is not None:
            return base.params(model)
        params: Mapping[str, Any] = self._entry(model)["params"]
        return params

    def matching(self, model: str, **built: object) -> Mapping[str, Any] | None:
        """`params` of a model that a bundle may lack; None where it does.

        `built`: what this version builds, by the name of the parameter that says what was trained on.
        Raises InvalidBundle where the two differ.
        """
        if model not in self.models:
            return None
        params = self.params(model)
        for name, value in built.items():
            trained = params.get(name, ())
            if (tuple(trained) if isinstance(trained, list) else trained) != value:
                raise InvalidBundle(
                    f"{self.path}: {model} was trained on other {name.replace('_', ' ')} than this version "
                    "builds; run `perfcast train`"
                )
        return params

    def boosters(self, model: str) -> tuple[str, ...]:
        """Names of the boosters of `model`, sorted."""
        if (base := self._elsewhere(model)) is not None:
            return base.boosters(model)
        return tuple(sorted(self._entry(model)["boosters"]))

    def booster(self, model: str, name: str) -> Any:
        """The `xgboost.Booster`, set to one thread (small matrices; bit-identical answers). Cached.

        Raises InvalidBundle: no such booster, file absent, or its hash differs.
        """
        if (base := self._elsewhere(model)) is not None:
            return base.booster(model, name)
        key = (model, name)
        with self._lock:
            if key not in self._boosters:
                self._boosters[key] = self._read(model, name)
            return self._boosters[key]

    def _elsewhere(self, model: str) -> Bundle | None:
        """The base, where it and not the overlay holds `model`."""
        return None if model in self.manifest["models"] else self.base

    def _entry(self, model: str) -> Mapping[str, Any]:
        try:
            entry: Mapping[str, Any] = self.manifest["models"][model]
        except KeyError:
            raise InvalidBundle(
                f"{self.path}: no model {model!r}; it holds {', '.join(self.models)}"
            ) from None
        return entry

    def _read(self, model: str, name: str) -> Any:
        entry = self._entry(model)["boosters"].get(name)
        if entry is None:
            raise InvalidBundle(f"{self.path}: model {model!r} has no booster {name!r}")
        file = self.path / entry["file"]
        try:
            blob = file.read_bytes()
            if file.name.endswith(_COMPRESSED):
                blob = zlib.decompress(blob)
        except OSError as error:
            raise InvalidBundle(f"{file}: cannot be read ({error.strerror or error})") from None
        except zlib.error:
            raise InvalidBundle(f"{file}: is no booster of this bundle; fetch the bundle again") from None
        actual, expected = content_sha256(blob), entry["content_sha256"]
        if actual != expected:
            raise InvalidBundle(
                f"{file}: content hash is {actual}, expected {expected}; fetch the bundle again"
            )
        return load_booster(blob)

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return (Bundle.load, (self.path,))
