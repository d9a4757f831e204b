"""Settings, graph store and pages: the parts of a server that need none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from predictor.errors import InvalidRequest, OutputNotWritable
from predictor.serve.graph_store import GraphStore
from predictor.serve.pages import page_of
from predictor.serve.settings import ServerSettings


def _id(number: int) -> str:
    return f"sha256:{number:064x}"


def test_settings_come_from_variables_and_flags_win() -> None:
    environment = {
        "PERFCAST_PORT": "1234",
        "PERFCAST_DRAIN_S": "1.5",
        "PERFCAST_REFLECTION": "false",
        "PERFCAST_TOKEN": "secret",
        "PERFCAST_HOST": "localhost",
        "OTHER": "x",
    }
    settings = ServerSettings.from_environment(environment, port=99, host=None)
    assert settings == ServerSettings(
        host="localhost", port=99, drain_s=1.5, reflection=False, token="secret"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [("PERFCAST_PORT", "http"), ("PERFCAST_REFLECTION", "maybe"), ("PERFCAST_GRACE_S", "long")],
)
def test_a_bad_variable_is_named(name: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match=name):
        ServerSettings.from_environment({name: text})


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "example.org", "[::]"])
def test_plain_text_stays_on_this_machine(host: str) -> None:
    with pytest.raises(InvalidRequest, match="plain text"):
        ServerSettings(host=host)
    assert ServerSettings(host=host, allow_insecure=True).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.0.0.2"])
def test_loopback_needs_no_flag(host: str) -> None:
    assert ServerSettings(host=host).host == host


def test_settings_check_their_numbers() -> None:
    for bad in ({"port": 70000}, {"workers": 0}, {"threads": 0}, {"tls_key": "k.pem"}):
        with pytest.raises(InvalidRequest):
            ServerSettings(**bad)


def test_an_absent_certificate_is_named(tmp_path: Path) -> None:
    settings = ServerSettings(tls_key=str(tmp_path / "k.pem"), tls_certificate=str(tmp_path / "c.pem"))
    with pytest.raises(InvalidRequest, match=r"k\.pem"):
        settings.read_tls()


def test_store_keeps_and_lists(tmp_path: Path) -> None:
    store = GraphStore(tmp_path / "graphs", 100)
    assert store.read(_id(1)) is None
    assert store.find(_id(1)) is None
    store.put(_id(2), b"two")
    store.put(_id(1), b"one!")
    store.put(_id(1), b"one!")
    assert store.read(_id(1)) == b"one!"
    assert [(model.model_id, model.size_bytes) for model in store.all()] == [(_id(1), 4), (_id(2), 3)]
    # Another process, or the next start.
    assert GraphStore(tmp_path / "graphs", 100).read(_id(2)) == b"two"


def test_store_drops_the_model_used_longest_ago(tmp_path: Path) -> None:
    store = GraphStore(tmp_path, 10)
    for number in (1, 2):
        store.put(_id(number), b"xxxx")
        path = next(path for path in tmp_path.iterdir() if path.stem.endswith(str(number)))
        os.utime(path, (number, number))
    store.read(_id(1))
    store.put(_id(3), b"xxxx")
    assert [model.model_id for model in store.all()] == [_id(1), _id(3)]


def test_store_stays_below_its_limit_and_seldom_looks_at_every_file(tmp_path: Path) -> None:
    class Counting(GraphStore):
        looks = 0

        def _files(self) -> list[tuple[Path, int, int]]:
            self.looks += 1
            return super()._files()

    store = Counting(tmp_path, 10_000)
    for number in range(3000):
        store.put(_id(number), b"x" * 10)
        if number % 100 == 0:
            assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10_000
    assert store.read(_id(2999)) is not None
    assert store.looks < 1000


def test_store_keeps_a_model_larger_than_itself(tmp_path: Path) -> None:
    store = GraphStore(tmp_path, 2)
    store.put(_id(1), b"xxxx")
    assert store.read(_id(1)) == b"xxxx"


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "sha256:..", _id(1) + "/x", "sha256:" + "G" * 64])
def test_store_reads_nothing_but_ids(name: str, tmp_path: Path) -> None:
    store = GraphStore(tmp_path, 100)
    assert store.read(name) is None
    assert store.find(name) is None
    with pytest.raises(ValueError, match="content address"):
        store.put(name, b"x")
    assert list(tmp_path.iterdir()) == []


def test_store_says_when_its_folder_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputNotWritable, match="file"):
        GraphStore(tmp_path / "file" / "below", 100)


def test_pages_cover_everything_once() -> None:
    items = [f"d{number:03}" for number in range(25)]
    seen: list[str] = []
    token = ""
    while True:
        page, token = page_of(items, str, 10, token)
        seen += page
        if not token:
            break
    assert seen == items


def test_a_page_survives_the_loss_of_its_last_entry() -> None:
    items = [f"d{number}" for number in range(6)]
    _, token = page_of(items, str, 3, "")
    items.remove("d2")
    assert page_of(items, str, 3, token)[0] == ["d3", "d4", "d5"]


def test_pages_have_a_default_and_a_limit() -> None:
    items = [f"{number:05}" for number in range(5000)]
    assert len(page_of(items, str, 0, "")[0]) == 100
    assert len(page_of(items, str, 10**6, "")[0]) == 1000
    assert page_of([], str, 0, "") == ([], "")


@pytest.mark.parametrize(("size", "token"), [(-1, ""), (1, "%%%"), (1, "AAA"), (1, "/w==")])
def test_bad_pages_are_refused(size: int, token: str) -> None:
    with pytest.raises(InvalidRequest):
        page_of(["a"], str, size, token)
