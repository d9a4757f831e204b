"""Things on disk that are no regular file are refused at once, before a read that never ends."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from predictor.errors import InvalidGraph
from predictor.features.reading.model_file import load_model
from predictor.features.reading.weight_payloads import WireError, strip_bytes


def test_a_pipe_nobody_writes_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(InvalidGraph, match="is a pipe"):
        load_model(tmp_path / "pipe.onnx")


def test_devices_and_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # socket names are short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s.onnx")
        for path in ("/dev/zero", "/dev/null", "s.onnx"):
            with pytest.raises(InvalidGraph, match="is a device or socket"):
                load_model(path)


def test_zeros_are_refused_at_the_first_byte() -> None:
    with pytest.raises(WireError, match="field number 0 at byte 0"):
        strip_bytes(bytes(10 * 2**20))
