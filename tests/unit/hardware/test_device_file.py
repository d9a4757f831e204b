from pathlib import Path

import pytest

from predictor.errors import InvalidInput
from predictor.hardware.device_file import FIELDS, load_device_file, parse_device_file
from predictor.hardware.spec import DeviceKind

ROOT = Path(__file__).parents[3]
SMALLEST = {
    "id": '"mine"',
    "memory_gib": "16",
    "memory_gb_per_s": "320.5",
    "vector_tflops": "8.1",
    "core_count": "40",
    "clock_mhz": "1590",
    "tdp_w": "70",
}


def write(path: Path, **changes: str | None) -> Path:
    lines = {key: value for key, value in (SMALLEST | changes).items() if value is not None}
    path.write_text("\n".join(f"{key} = {value}" for key, value in lines.items()))
    return path


def test_the_documented_example_loads() -> None:
    spec = load_device_file(ROOT / "examples" / "my-gpu.toml")
    assert spec.id == "my-gpu-pcie-48gb"
    assert spec.memory_bytes == 48 * 2**30
    assert spec.memory_bytes_per_s == 864e9
    assert spec.clock_hz == 2.52e9
    assert spec.l2_bytes == 96 * 2**20
    assert spec.matrix_flops_per_s["bf16"] == 362e12
    assert spec.matrix_flops_per_s["fp32"] == spec.vector_flops_per_s == 91.6e12
    assert spec.link_bytes_per_s is None
    assert spec.estimated_fields == ("l2_bytes",)


def test_the_guide_names_every_key() -> None:
    guide = (ROOT / "docs" / "how-to" / "add-a-device.md").read_text()
    assert [field.key for field in FIELDS if f"`{field.key}`" not in guide] == []
    assert [key for key in SMALLEST if f"`{key}`" not in guide] == []


def test_the_smallest_file(tmp_path: Path) -> None:
    spec = load_device_file(write(tmp_path / "mine.toml"))
    assert (spec.name, spec.kind, spec.link_kind) == ("mine", DeviceKind.GPU, "pcie")
    assert spec.memory_bytes_per_s == 320.5e9
    assert spec.idle_w is None
    assert spec.reported_memory_bytes is None


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"memory_gib": None}, "memory_gib", "missing; expected a number of GiB"),
        ({"memory_gb": "16"}, "memory_gb", "unknown; did you mean 'memory_gib'"),
        ({"memory_gib": "-1"}, "memory_gib", "is -1; expected a number of GiB"),
        ({"memory_gib": "0"}, "memory_gib", "is 0; expected"),
        ({"memory_gib": "17179869184"}, "memory_gib", "expected a number of GiB from 0.001 to 100000"),
        ({"tdp_w": '"70"'}, "tdp_w", "is '70'; expected a number of W"),
        ({"tdp_w": "true"}, "tdp_w", "is True; expected a number"),
        ({"tdp_w": "nan"}, "tdp_w", "is nan; expected"),
        ({"tdp_w": "inf"}, "tdp_w", "is inf; expected"),
        ({"core_count": "40.5"}, "core_count", "expected a whole number of cores"),
        ({"kind": '"graphics"'}, "kind", "expected one of gpu, cpu"),
        ({"aliases": '"t4"'}, "aliases", "expected a list of texts"),
        ({"matrix_tflops": "{ fp15 = 3 }"}, "matrix_tflops", "with keys out of fp64, fp32"),
        ({"matrix_tflops": "{ fp16 = 0 }"}, "matrix_tflops", "TFLOP/s from"),
        ({"id": '""'}, "id", "expected text"),
        ({"sources": "{ memory = 3 }"}, "sources", "a table of texts"),
    ],
)
def test_a_wrong_file_is_one_clear_line(
    tmp_path: Path, changes: dict[str, str | None], key: str, words: str
) -> None:
    path = write(tmp_path / "wrong.toml", **changes)
    with pytest.raises(InvalidInput) as caught:
        load_device_file(path)
    message = caught.value.message
    assert str(path) in message
    assert f"'{key}'" in message
    assert words in message
    assert "\n" not in message
    assert key in caught.value.metadata["key"].split(",")


def test_all_problems_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "wrong.toml", memory_gib=None, tdp_w="0", watts="70")
    with pytest.raises(InvalidInput) as caught:
        load_device_file(path)
    assert set(caught.value.metadata["key"].split(",")) == {"memory_gib", "tdp_w", "watts"}


@pytest.mark.parametrize("content", [b"memory_gib 16", b"\xff\xfe", b"id = "])
def test_no_toml(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "wrong.toml"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"wrong\.toml: not TOML"):
        load_device_file(path)


def test_an_empty_file_lists_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_text("")
    with pytest.raises(InvalidInput, match="'memory_gib' is missing"):
        load_device_file(path)


@pytest.mark.parametrize("place", ["absent.toml", "."])
def test_unreadable(tmp_path: Path, place: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_device_file(tmp_path / place)


def test_a_file_of_two_devices_is_not_one_device(tmp_path: Path) -> None:
    table = "[[device]]\n" + write(tmp_path / "one.toml").read_text()
    path = tmp_path / "two.toml"
    path.write_text(f"{table}\n{table.replace('mine', 'yours')}\n")
    assert [spec.id for spec in parse_device_file(path)] == ["mine", "yours"]
    with pytest.raises(InvalidInput, match="holds 2 devices"):
        load_device_file(path)


def test_defaults_and_documents_are_shared(tmp_path: Path) -> None:
    path = tmp_path / "many.toml"
    head = '[documents]\nsheet = "The data sheet"\n[defaults]\nvendor = "Acme"\n[[device]]\n'
    path.write_text(
        head
        + write(tmp_path / "one.toml", sources='{ memory = "sheet", power = "sheet + recalled" }').read_text()
    )
    spec = load_device_file(path)
    assert spec.vendor == "Acme"
    assert spec.sources["memory"] == "The data sheet"
    assert spec.sources["power"] == "The data sheet; recalled, not re-read: Acme data sheet of mine"


def test_unknown_key_beside_the_tables(tmp_path: Path) -> None:
    path = tmp_path / "many.toml"
    path.write_text('vendor = "Acme"\n[[device]]\n' + write(tmp_path / "one.toml").read_text())
    with pytest.raises(InvalidInput, match="'vendor' is unknown beside"):
        parse_device_file(path)


GOOD = """
id = "card"
memory_gib = 48
memory_gb_per_s = 864
core_count = 142
clock_mhz = 2520
vector_tflops = 91.6
tdp_w = 350
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("device = 3", r"expected tables, each under a line \[\[device\]\]"),
        ("device = [1, 2]", r"expected tables, each under a line \[\[device\]\]"),
        ("device = 'x'", r"expected tables, each under a line \[\[device\]\]"),
        ("defaults = 3\n[[device]]" + GOOD, r"expected a table under a line \[defaults\]"),
        ("documents = 3\n[[device]]" + GOOD, r"expected a table under a line \[documents\]"),
        ("a = " + "[" * 5000 + "]" * 5000, "not TOML"),
        ("id = " + "9" * 5000, "not TOML"),
        (GOOD + "year = 2024.5", "expected a year"),
        (GOOD + "idle_w = 350", "expected less than tdp_w, 350"),
    ],
    ids=range(9),
)
def test_files_of_another_structure_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "card.toml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=words) as caught:
        load_device_file(path)
    assert caught.value.metadata["file"] == str(path)


def test_a_byte_order_mark_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_text(GOOD, encoding="utf-8-sig")
    assert load_device_file(path).id == "card"
