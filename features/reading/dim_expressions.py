"""Arithmetic in dimension names, as exporters write it: `16*H`, `s0//2 + 1`, `floor(W/2)`, `Max(1, s1)`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor
from types import MappingProxyType
from typing import TypeAlias

Number: TypeAlias = "int | Fraction"


def _divide(a: Number, b: Number) -> Number:
    return Fraction(a) / Fraction(b)


_OPERATORS: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.FloorDiv: operator.floordiv,
        ast.Div: _divide,
        ast.Mod: operator.mod,
    }
)
_FUNCTIONS: Mapping[str, Callable[..., Number]] = MappingProxyType(
    {
        "floor": floor,
        "ceil": ceil,
        "ceiling": ceil,
        "max": max,
        "min": min,
        "mod": operator.mod,
        "floordiv": operator.floordiv,
        "cleandiv": operator.floordiv,
        "int": floor,
    }
)
_LENGTH_LIMIT = 256
_POWER_LIMIT = 8


@lru_cache(maxsize=4096)
def symbols_of(text: str) -> frozenset[str]:
    """The symbols an expression needs; the text itself when it is one name or no arithmetic."""
    tree = _parse(text)
    if tree is None or isinstance(tree, ast.Name):
        return frozenset({text})
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return frozenset(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in called)


def evaluate(text: str, numbers: Mapping[str, int]) -> int | None:
    """The expression's whole-number value, or None when a symbol is missing or the value is no integer."""
    if text in numbers:
        return numbers[text]
    tree = _parse(text)
    if tree is None:
        return None
    try:
        value = _value(tree, numbers)
    except (KeyError, ZeroDivisionError, TypeError, ValueError, OverflowError):
        return None
    return int(value) if value == int(value) else None


@lru_cache(maxsize=4096)
def _parse(text: str) -> ast.expr | None:
    """The syntax tree when `text` is arithmetic over names, else None."""
    if len(text) > _LENGTH_LIMIT or not text.isprintable():
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree if _is_arithmetic(tree) else None


def _is_arithmetic(node: ast.expr) -> bool:
    match node:
        case ast.Name() | ast.Constant(value=int()):
            return True
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))):
            return 0 <= power <= _POWER_LIMIT and _is_arithmetic(left)
        case ast.BinOp(left=left, op=op, right=right):
            return type(op) in _OPERATORS and _is_arithmetic(left) and _is_arithmetic(right)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_arithmetic(operand)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return name.lower() in _FUNCTIONS and all(map(_is_arithmetic, args))
    return False


def _value(node: ast.expr, numbers: Mapping[str, int]) -> Number:
    match node:
        case ast.Name(id=name):
            return numbers[name]
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))):
            result: Number = _value(left, numbers) ** power
            return result
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, numbers), _value(right, numbers))
        case ast.UnaryOp(operand=operand):
            return -_value(operand, numbers)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name.lower()](*(_value(argument, numbers) for argument in args))
    raise ValueError(ast.dump(node))
