"""Pagination by key: a token names the last key seen, so pages stay right as entries come and go."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import TypeVar

from predictor.errors import InvalidRequest

Item = TypeVar("Item")

DEFAULT_SIZE, LARGEST_SIZE = 100, 1000


def page_of(
    items: Sequence[Item], key: Callable[[Item], str], page_size: int, page_token: str
) -> tuple[Sequence[Item], str]:
    """One page of `items` (ordered by `key`) and the token of the next, empty on the last.

    Raises InvalidRequest on a negative size or a token that is none of ours.
    """
    if page_size < 0:
        raise InvalidRequest(f"page_size is {page_size}; expected 0 or more", field="page_size")
    size = min(page_size or DEFAULT_SIZE, LARGEST_SIZE)
    if page_token:
        after = _decode(page_token)
        items = [item for item in items if key(item) > after]
    page = items[:size]
    return page, _encode(key(page[-1])) if len(items) > size else ""


def _encode(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode()


def _decode(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise InvalidRequest(
            f"page_token {token[:40]!r} is none of this server's; start again without one", field="page_token"
        ) from None
