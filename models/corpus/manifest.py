"""Where each source comes from and what its files must be: facts, not the rows."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from predictor.errors import InvalidData

_MANIFEST = Path(__file__).with_name("manifest.toml")
_DATA = Path(__file__).resolve().parents[1] / "data"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One raw file: path below the source's folder, path upstream, content hash."""

    path: str
    upstream_path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Source:
    """One publisher's measurements. `reader` names the module of predictor.models.corpus that cleans them.

    `shares` names another source in whose folder its files lie; a source that is `packaged` is part of this
    repository and lies in models/data.
    """

    id: str
    reader: str
    repository: str
    commit: str
    licence: str
    files: tuple[SourceFile, ...]
    shares: str = ""
    packaged: bool = False

    def folder(self, root: Path) -> Path:
        """Where its files lie."""
        return (_DATA if self.packaged else root) / (self.shares or self.id)

    def verify(self, root: Path) -> None:
        """Compares every file of its folder with its hash.

        Raises InvalidData naming the file and, on a mismatch, both hashes.
        """
        folder = self.folder(root)
        for file in self.files:
            path = folder / file.path
            if not path.is_file():
                raise InvalidData(
                    f"{path}: not found; source {self.id} needs it (from {self.repository} at {self.commit}, "
                    f"{file.upstream_path}). Give the folder that holds {self.id}/ as --root",
                    file=path,
                )
            actual = file_sha256(path)
            if actual != file.sha256:
                raise InvalidData(
                    f"{path}: sha256 is {actual}, expected {file.sha256}; "
                    f"fetch it again from {self.repository} at {self.commit}",
                    file=path,
                    expected=file.sha256,
                    actual=actual,
                )


def file_sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def load_manifest(path: Path = _MANIFEST) -> Mapping[str, Source]:
    """All sources by id, in the file's order."""
    with path.open("rb") as stream:
        entries = tomllib.load(stream)["source"]
    return {
        entry["id"]: Source(
            id=entry["id"],
            reader=entry["reader"],
            repository=entry["repository"],
            commit=entry["commit"],
            licence=entry["licence"],
            files=tuple(SourceFile(f["path"], f["upstream_path"], f["sha256"]) for f in entry["files"]),
            shares=entry.get("shares", ""),
            packaged=entry.get("packaged", False),
        )
        for entry in entries
    }
