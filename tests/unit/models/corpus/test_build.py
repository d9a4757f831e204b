from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from predictor.errors import InvalidData, OutputNotWritable, UnknownName
from predictor.models.corpus import build
from predictor.models.corpus.build import build_corpus, data_root, missing_sources, read_index, read_source
from predictor.models.corpus.manifest import Source, SourceFile, file_sha256, load_manifest
from predictor.models.corpus.schema import COLUMNS, canonical, conform
from predictor.models.train import REQUIRED_SOURCES, train

ROW = {
    "subject": "relu",
    "subject_kind": "op",
    "device": "d",
    "configuration": "{}",
    "quantity": "latency",
    "value": 1.0,
    "unit": "s",
    "scope": "host_wall",
    "source": "made",
    "device_group": "d",
    "model_group": "g",
}


class _Reader:
    """Stands in for a source's reader module: two rows from a text file with two numbers."""

    @staticmethod
    def read(folder: Path) -> pl.DataFrame:
        numbers = [float(text) for text in (folder / "raw.txt").read_text().split()]
        return pl.DataFrame([{**ROW, "value": number} for number in numbers])


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "raw"
    (folder / "made").mkdir(parents=True)
    (folder / "made" / "raw.txt").write_text("2.0 1.0")
    digest = file_sha256(folder / "made" / "raw.txt")
    source = Source("made", "made", "https://x", "abc", "MIT", (SourceFile("raw.txt", "up.txt", digest),))
    monkeypatch.setattr(build, "load_manifest", lambda: {"made": source})
    monkeypatch.setattr(build, "import_module", lambda name: _Reader)
    return folder


@pytest.fixture
def two(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[Source]:
    """A second source, `other`, after `made`."""
    (root / "other").mkdir()
    (root / "other" / "raw.txt").write_text("5.0")
    digest = file_sha256(root / "other" / "raw.txt")
    other = Source("other", "made", "https://y", "def", "MIT", (SourceFile("raw.txt", "up.txt", digest),))
    sources = [*build.load_manifest().values(), other]
    monkeypatch.setattr(build, "load_manifest", lambda: {source.id: source for source in sources})
    return sources


def test_rows_are_written_with_an_index(root: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    (entry,) = build_corpus(root, tmp_path / "out", progress=lambda *args: seen.append(args))
    assert entry.rows == 2
    assert read_index(tmp_path / "out") == (entry,)
    assert read_source(tmp_path / "out", "made")["value"].to_list() == [1.0, 2.0]
    assert seen[0] == ("made", 0, 1)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["corpus.json", "made.parquet"]


def test_the_same_files_give_the_same_hash(root: Path, tmp_path: Path) -> None:
    assert build_corpus(root, tmp_path / "a") == build_corpus(root, tmp_path / "b")


def test_an_altered_file_names_both_hashes(root: Path, tmp_path: Path) -> None:
    path = root / "made" / "raw.txt"
    expected = file_sha256(path)
    path.write_text("3.0")
    with pytest.raises(InvalidData) as caught:
        build_corpus(root, tmp_path / "out")
    assert str(path) in caught.value.message
    assert expected in caught.value.message
    assert file_sha256(path) in caught.value.message
    assert not (tmp_path / "out" / "made.parquet").exists()


def test_every_file_is_checked_before_anything_is_built(
    root: Path, tmp_path: Path, two: list[Source]
) -> None:
    (root / "other" / "raw.txt").write_text("3.0")
    with pytest.raises(InvalidData, match="other"):
        build_corpus(root, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_interrupted_build_names_only_what_is_complete(
    root: Path, tmp_path: Path, two: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    build_corpus(root, out)
    assert missing_sources(out, ["other", "made"]) == []

    class Interrupted(_Reader):
        @staticmethod
        def read(folder: Path) -> pl.DataFrame:
            if folder.name == "other":
                raise KeyboardInterrupt
            return _Reader.read(folder)

    monkeypatch.setattr(build, "import_module", lambda name: Interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_corpus(root, out)
    assert missing_sources(out, ["other", "made"]) == ["other"]
    monkeypatch.setattr(build, "import_module", lambda name: _Reader)
    assert [entry.source for entry in build_corpus(root, out, only=["other"])] == ["other"]
    assert missing_sources(out, ["other", "made"]) == []


def test_a_corpus_of_another_schema_is_replaced(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for text in ('{"schema": "old"}', "[]", "no json"):
        (out / "corpus.json").write_text(text)
        with pytest.raises(InvalidData, match="build the corpus again"):
            read_index(out)
        build_corpus(root, out)
        assert len(read_index(out)) == 1


def test_a_damaged_table_is_named(root: Path, tmp_path: Path) -> None:
    build_corpus(root, tmp_path / "out")
    path = tmp_path / "out" / "made.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InvalidData, match=r"made\.parquet.*corpus build --source made"):
        read_source(tmp_path / "out", "made")


def test_training_names_every_source_it_lacks_before_it_starts(root: Path, tmp_path: Path) -> None:
    build_corpus(root, tmp_path / "out")
    with pytest.raises(InvalidData, match=f"{', '.join(REQUIRED_SOURCES)}; run"):
        train(tmp_path / "out", tmp_path / "bundle", progress=_never)
    with pytest.raises(InvalidData, match="corpus build"):
        train(tmp_path / "nowhere", tmp_path / "bundle", progress=_never)
    assert not (tmp_path / "bundle").exists()


def _never(what: str, done: int, total: int) -> None:
    raise AssertionError(what)


def test_an_absent_file_says_where_it_is_from(root: Path, tmp_path: Path) -> None:
    (root / "made" / "raw.txt").unlink()
    with pytest.raises(InvalidData, match="https://x at abc"):
        build_corpus(root, tmp_path / "out")


def test_an_unknown_source_and_unusable_folders(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="unknown source 'mad'"):
        build_corpus(root, tmp_path / "out", only=["mad"])
    with pytest.raises(InvalidData, match="not a folder"):
        data_root(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputNotWritable):
        build_corpus(root, tmp_path / "file" / "out")


def test_no_folder_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERFCAST_DATA", raising=False)
    with pytest.raises(InvalidData, match="PERFCAST_DATA"):
        data_root(None)


def test_the_environment_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PERFCAST_DATA", str(tmp_path))
    assert data_root(None) == tmp_path


def test_reading_what_was_not_built(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="corpus build"):
        read_index(tmp_path)
    with pytest.raises(InvalidData, match="--source made"):
        read_source(tmp_path, "made")
    (tmp_path / "corpus.json").write_text(json.dumps({"schema": "old"}))
    with pytest.raises(InvalidData, match="schema 'old'"):
        read_index(tmp_path)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"unit": "ms"}, "latency in 'ms'"),
        ({"quantity": "speed"}, "speed in 's'"),
        ({"scope": "somewhere"}, "scope 'somewhere'"),
        ({"value": 0.0}, "1 values are not above 0"),
        ({"value": float("nan")}, "not above 0"),
        ({"subject": None}, "empty cells in subject"),
    ],
)
def test_rows_outside_the_schema_are_refused(change: dict[str, object], text: str) -> None:
    frame = pl.DataFrame([ROW, {**ROW, **change}])
    with pytest.raises(InvalidData, match=text):
        conform(frame, "made")


def test_a_missing_column_is_named() -> None:
    with pytest.raises(InvalidData, match=r"column\(s\) unit missing"):
        conform(pl.DataFrame([ROW]).drop("unit"), "made")


def test_columns_and_order_are_the_schemas() -> None:
    frame = conform(pl.DataFrame([{"extra": 1, **ROW}]), "made")
    assert frame.columns == list(COLUMNS)
    assert canonical({"b": 1, "a": 2}) == '{"a":2,"b":1}'


def test_the_shipped_manifest_is_complete() -> None:
    manifest = load_manifest()
    assert {"neusight", "gpumemnet", "zeus-nsdi23", "gaissa-seaa2023-training"} <= set(manifest)
    for source in manifest.values():
        assert source.commit
        assert source.licence
        # Rows that perfcast's own profiler measured lie in this repository.
        assert source.repository.startswith("https://") or source.id == "profiles"
        assert all(len(file.sha256) == 64 for file in source.files)
