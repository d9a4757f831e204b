"""A `config.json`, read field by field; what is missing or of the wrong kind is named in the error.

Families call one size by several names (`hidden_size`, `n_embd`, `d_model`): every reader takes all names and
uses the first that is present. A field that is null counts as absent, as it does for the implementations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from predictor.errors import InvalidRequest

WIDTH = ("hidden_size", "n_embd", "n_embed", "d_model", "dim")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
HIDDEN = ("intermediate_size", "n_inner", "ffn_dim", "hidden_dim", "d_ff")
POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
ACTIVATION = ("hidden_act", "activation_function", "hidden_activation", "activation")
NORM_EPSILON = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")

# Beyond these no model is meant, and a graph would not end.
_LARGEST = 2**24
_MOST_LAYERS = 1024


class Fields:
    """Typed access to one level of a configuration.

    Every method raises InvalidRequest, with the field's name, for a value that is absent without a default
    or not of the expected kind.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "the configuration") -> None:
        self._values = values
        self._where = where

    def get(self, *names: str) -> Any:
        """The first of the fields that is present and not null, else None."""
        return next((self._values[name] for name in names if self._values.get(name) is not None), None)

    def integer(
        self, *names: str, default: int | None = None, least: int = 1, most: int = _LARGEST - 1
    ) -> int:
        """A whole number from `least` to `most`."""
        found = self.get(*names)
        if found is None:
            if default is None:
                raise self._error(names, "is missing", "a whole number")
            return default
        if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= most:
            reach = f"to {most}" if most < _LARGEST - 1 else "up"
            raise self._error(names, f"is {_short(found)}", f"a whole number from {least} {reach}")
        return found

    def optional_integer(self, *names: str) -> int | None:
        """A positive whole number, or None where the field is absent."""
        return None if self.get(*names) is None else self.integer(*names)

    def layers(self, *names: str, default: int | None = None) -> int:
        """A number of layers, bounded so that the graph is."""
        count = self.integer(*(names or LAYERS), default=default)
        if count > _MOST_LAYERS:
            raise self._error(names or LAYERS, f"is {count}", f"at most {_MOST_LAYERS}")
        return count

    def number(self, *names: str, default: float | None = None) -> float:
        """A positive number; no field read here means anything at zero or below."""
        found = self.get(*names)
        if found is None and default is not None:
            return default
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < _LARGEST:
            problem = "is missing" if found is None else f"is {_short(found)}"
            raise self._error(names, problem, "a number above 0")
        return float(found)

    def optional_number(self, *names: str) -> float | None:
        """A positive number, or None where the field is absent."""
        return None if self.get(*names) is None else self.number(*names)

    def flag(self, *names: str, default: bool) -> bool:
        """True or false."""
        found = self.get(*names)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise self._error(names, f"is {_short(found)}", "true or false")
        return found

    def text(self, *names: str, default: str | None = None) -> str:
        """A word."""
        found = self.get(*names)
        if found is None and default is not None:
            return default
        if not isinstance(found, str):
            raise self._error(names, "is missing" if found is None else f"is {_short(found)}", "a text")
        return found

    def words(self, name: str) -> tuple[str, ...]:
        """A list of words; empty where absent. One word may hold several, separated by `|`."""
        found = self.get(name)
        if found is None:
            return ()
        if isinstance(found, str):
            return tuple(found.lower().split("|"))
        if not isinstance(found, Sequence) or not all(isinstance(item, str) for item in found):
            raise self._error((name,), f"is {_short(found)}", "a list of texts")
        return tuple(found)

    def child(self, *names: str) -> Fields:
        """A nested configuration; an empty one where the field is absent."""
        found = self.get(*names)
        if found is None:
            return Fields({}, f"{self._where}, {names[0]}")
        if not isinstance(found, Mapping):
            raise self._error(names, f"is {_short(found)}", "an object")
        return Fields(found, f"{self._where}, {names[0]}")

    def divided(self, whole: int, parts: int, *names: str) -> int:
        """whole / parts. Raises InvalidRequest where that leaves a rest."""
        if whole % parts:
            raise self._error(names, f"is {parts}", f"a divisor of {whole}")
        return whole // parts

    def head_dim(self, width: int, heads: int) -> int:
        """`head_dim` where given, else the width shared among the heads."""
        return self.optional_integer("head_dim") or self.divided(width, heads, *HEADS)

    @property
    def labels(self) -> int:
        """Number of classes: `num_labels`, else the length of `id2label`, else 2."""
        names = self.get("id2label")
        listed = len(names) if isinstance(names, Mapping) and names else 2
        return self.integer("num_labels", default=listed)

    def _error(self, names: Sequence[str], problem: str, expected: str) -> InvalidRequest:
        present = next((name for name in names if self._values.get(name) is not None), names[0])
        return InvalidRequest(
            f"{self._where}: field {present!r} {problem}; expected {expected}", field=present
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
