"""Checked reading of hand-written TOML tables: every problem of a table is found, and raised as one error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from predictor.errors import InvalidInput

Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a table.

    Attributes:
        key: name in the file, in the units of data sheets (`memory_gib`, `fp16` in `matrix_tflops` ...).
        check: returns a phrase of what was expected, or None when the value is right.
        required: a table without the key is an error.
    """

    key: str
    check: Callable[[Any], str | None]
    required: bool = False


def read_toml(path: Path) -> dict[str, Any]:
    """The parsed file. Raises InvalidInput when it cannot be read or is not TOML."""
    import tomllib

    try:
        # Editors on Windows begin a file with a byte order mark.
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InvalidInput(
            f"{path}: cannot be read ({error.strerror}); expected a TOML file; check the path", file=path
        ) from None
    except (ValueError, RecursionError) as error:
        # Beside TOML's own errors: no UTF-8, numbers of thousands of digits, tables thousands deep.
        raise InvalidInput(
            f"{path}: not TOML ({error}); expected lines such as `memory_gib = 80`; "
            "see docs/how-to/add-a-device.md",
            file=path,
        ) from None


def tables_of(content: Table, key: str, path: Path) -> tuple[Table, ...]:
    """The `[[key]]` tables of a file. Raises InvalidInput when they are something else."""
    tables = content[key]
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InvalidInput(
            f"{path}: key {key!r} is {tables!r}; expected tables, each under a line [[{key}]]",
            file=path,
            key=key,
        )
    return tuple(tables)


def shared_table(content: Table, key: str, path: Path) -> Table:
    """The `[key]` table of a file, empty if absent. Raises InvalidInput when it is something else."""
    table = content.get(key, {})
    if not isinstance(table, dict):
        raise InvalidInput(
            f"{path}: key {key!r} is {table!r}; expected a table under a line [{key}]", file=path, key=key
        )
    return table


def check_table(table: Table, fields: Iterable[Field], where: str, path: Path | str) -> None:
    """Raises one InvalidInput that lists unknown keys, missing keys and wrong values of `table`.

    Args:
        where: what the table describes, e.g. `device my-card`.
        path: the file, for the message.
    """
    known = {field.key: field for field in fields}
    problems = [
        (key, f"key {key!r} is unknown{_near(key, known)}; remove or rename it")
        for key in table
        if key not in known
    ]
    for key, field in known.items():
        if key not in table:
            if field.required:
                problems.append((key, f"key {key!r} is missing; expected {field.check(None)}; add it"))
        elif expected := field.check(table[key]):
            problems.append((key, f"key {key!r} is {table[key]!r}; expected {expected}; correct it"))
    if problems:
        text = " | ".join(message for _, message in problems)
        keys = ",".join(key for key, _ in problems)
        raise InvalidInput(f"{path}: {where}: {text}; see docs/how-to/add-a-device.md", file=path, key=keys)


def _near(key: str, known: Iterable[str]) -> str:
    near = get_close_matches(key, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def text(value: Any) -> str | None:
    """A non-empty string."""
    return None if isinstance(value, str) and value.strip() else "text in quotes"


def optional_text(value: Any) -> str | None:
    """A string, possibly empty."""
    return None if isinstance(value, str) else "text in quotes"


def texts(value: Any) -> str | None:
    """A list of non-empty strings."""
    good = isinstance(value, list) and all(text(item) is None for item in value)
    return None if good else "a list of texts in quotes"


def text_table(value: Any) -> str | None:
    """A table of non-empty strings."""
    good = isinstance(value, dict) and all(text(item) is None for item in value.values())
    return None if good else "a table of texts in quotes"


def one_of(*choices: str) -> Callable[[Any], str | None]:
    """One text out of a closed set."""
    expected = "one of " + ", ".join(choices)
    return lambda value: None if value in choices else expected


def number(unit: str, low: float, high: float) -> Callable[[Any], str | None]:
    """A number inside [low, high]; the bounds are wide and catch slips of unit."""
    expected = f"a number of {unit} from {low:g} to {high:g}"
    return lambda value: None if _is_number(value) and low <= value <= high else expected


def count(unit: str, high: int) -> Callable[[Any], str | None]:
    """A whole number from 1 to `high`."""
    expected = f"a whole number of {unit} from 1 to {high}"
    return lambda value: (
        None if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= high else expected
    )


def truth(value: Any) -> str | None:
    """`true` or `false`."""
    return None if isinstance(value, bool) else "true or false"


def year(value: Any) -> str | None:
    """A year that has devices."""
    good = isinstance(value, int) and not isinstance(value, bool) and 1990 <= value <= 2100
    return None if good else "a year from 1990 to 2100"


def number_table(unit: str, keys: Iterable[str], low: float, high: float) -> Callable[[Any], str | None]:
    """A table from some of `keys` to numbers inside [low, high]."""
    allowed = tuple(keys)
    expected = f"a table of {unit} from {low:g} to {high:g} with keys out of {', '.join(allowed)}"

    def check(value: Any) -> str | None:
        good = isinstance(value, dict) and all(
            key in allowed and _is_number(item) and low <= item <= high for key, item in value.items()
        )
        return None if good else expected

    return check


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
