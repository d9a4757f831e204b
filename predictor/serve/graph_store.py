"""Uploaded models on disk, addressed by content, so that every worker process and the next start find them.

A file's name is its id; files appear whole (written aside, then renamed) and are touched when used, so the
modification time orders them for eviction.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from predictor.errors import OutputNotWritable
from predictor.files import write_whole

_ID = re.compile(r"sha256:([0-9a-f]{64})\Z")
_SUFFIX = ".onnx"
# Looking at every file takes longer the more there are, so it waits until a share of the room is used up: one
# that this many processes may use before all of it is. Some room is made at once, for the same reason.
_WRITERS = 16
_KEPT_FRACTION = 0.9


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model in the store."""

    model_id: str
    size_bytes: int


class GraphStore:
    """A folder of weight-stripped models, at most `limit_bytes` of them. Safe for threads and processes."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._lock = Lock()
        self._written_bytes, self._slack_bytes = 0, 0
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise OutputNotWritable(f"{folder}: cannot hold uploaded models ({error.strerror})") from None

    def put(self, model_id: str, data: bytes) -> StoredModel:
        """Keeps `data` under its id. Raises OutputNotWritable; ValueError if the id is none."""
        path = self._path(model_id)
        if path is None:
            raise ValueError(f"{model_id!r} is no content address")
        if not self._touch(path):
            with self._lock:
                write_whole(path, lambda partial: partial.write_bytes(data))
                self._written_bytes += len(data)
                if self._written_bytes > self._slack_bytes:
                    self._evict(keep=path)
        return StoredModel(model_id, len(data))

    def read(self, model_id: str) -> bytes | None:
        """The model's bytes, or None when it is not held."""
        path = self._path(model_id)
        try:
            data = path.read_bytes() if path is not None else None
        except OSError:
            return None
        if path is not None:
            self._touch(path)
        return data

    def find(self, model_id: str) -> StoredModel | None:
        """The model's description, or None when it is not held."""
        path = self._path(model_id)
        try:
            return StoredModel(model_id, path.stat().st_size) if path is not None else None
        except OSError:
            return None

    def all(self) -> list[StoredModel]:
        """Every model held, by id."""
        return [StoredModel(f"sha256:{path.stem}", size) for path, size, _ in sorted(self._files())]

    def _path(self, model_id: str) -> Path | None:
        # The pattern is what keeps a caller's text from naming any other file.
        found = _ID.match(model_id)
        return self._folder / f"{found[1]}{_SUFFIX}" if found else None

    @staticmethod
    def _touch(path: Path) -> bool:
        try:
            os.utime(path)
        except OSError:
            return False
        return True

    def _files(self) -> list[tuple[Path, int, int]]:
        files = []
        for path in self._folder.glob(f"[0-9a-f]*{_SUFFIX}"):
            # Another worker may remove it in between.
            with suppress(OSError):
                status = path.stat()
                files.append((path, status.st_size, status.st_mtime_ns))
        return files

    def _evict(self, keep: Path) -> None:
        files = sorted(self._files(), key=lambda item: item[2])
        total_bytes = sum(size for _, size, _ in files)
        if total_bytes > self._limit_bytes:
            for path, size, _ in files:
                if total_bytes <= _KEPT_FRACTION * self._limit_bytes:
                    break
                if path != keep:
                    path.unlink(missing_ok=True)
                    total_bytes -= size
        self._written_bytes = 0
        self._slack_bytes = max(0, self._limit_bytes - total_bytes) // _WRITERS
