"""How each operator of the installed ONNX is covered: rule, control flow, its own body, or bytes moved."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from predictor.evaluation.report import Table


class Coverage(StrEnum):
    """What prices the op."""

    RULE = "own rule"
    CONTROL = "control flow: its body is priced"
    FUNCTION = "function: its body is opened"
    FALLBACK = "bytes moved"


@dataclass(frozen=True, slots=True)
class OpCoverage:
    """One operator; `since` are its opset versions in ONNX (empty for contrib ops)."""

    domain: str
    op_type: str
    since: tuple[int, ...]
    forward: Coverage
    has_backward: bool


def op_coverage() -> list[OpCoverage]:
    """All ops of ONNX's schema registry in their newest version, then com.microsoft ops that have a rule."""
    from onnx import defs

    from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, load_rules
    from predictor.features.reading.control import CONTROL_RULES

    load_rules()
    versions: dict[tuple[str, str], list[int]] = {}
    functions: set[tuple[str, str]] = set()
    for schema in defs.get_all_schemas_with_history():
        key = (schema.domain, schema.name)
        versions.setdefault(key, []).append(schema.since_version)
        if schema.has_function or schema.has_context_dependent_function:
            functions.add(key)
    for domain, op_type, _ in WORK_RULES:
        if domain == "com.microsoft":
            versions.setdefault((domain, op_type), [])
    found = []
    for (domain, op_type), since in sorted(versions.items()):
        newest = max(since, default=1)
        forward = Coverage.FALLBACK
        if WORK_RULES.get(domain, op_type, newest) is not None:
            forward = Coverage.RULE
        elif CONTROL_RULES.get(domain, op_type, newest) is not None:
            forward = Coverage.CONTROL
        elif (domain, op_type) in functions:
            forward = Coverage.FUNCTION
        # A body brings the gradients of what is in it.
        opened = forward in (Coverage.CONTROL, Coverage.FUNCTION)
        backward = opened or BACKWARD_RULES.get(domain, op_type, newest) is not None
        found.append(OpCoverage(domain, op_type, tuple(sorted(since)), forward, backward))
    return found


def coverage_tables(
    found: Collection[OpCoverage], golden: Collection[tuple[str, str]], unread: Collection[str]
) -> list[Table]:
    """Counts by domain; then the ops by how they are covered.

    Args:
        golden: (domain, op) pairs that have a golden case.
        unread: op types of ONNX that no model of the tests uses.
    """
    domains = list(dict.fromkeys(item.domain for item in found))
    counts = []
    for domain in domains:
        part = [item for item in found if item.domain == domain]
        counts.append(
            (
                domain or "ai.onnx",
                str(len(part)),
                *(str(sum(item.forward is kind for item in part)) for kind in Coverage),
                str(sum((item.domain, item.op_type) in golden for item in part)),
                str(sum(item.has_backward for item in part)),
            )
        )
    header = ("domain", "ops", *(kind.value for kind in Coverage), "golden case", "gradient rule")
    tables = [Table("Operators", header, tuple(counts))]
    lines = []
    for domain in domains:
        for kind in Coverage:
            names = [item.op_type for item in found if item.domain == domain and item.forward is kind]
            if names:
                lines.append((domain or "ai.onnx", kind.value, ", ".join(names)))
        without = [item.op_type for item in found if item.domain == domain and not item.has_backward]
        lines.append((domain or "ai.onnx", "gradient by twice the forward bytes", ", ".join(without)))
        bare = [
            item.op_type
            for item in found
            if item.domain == domain
            and item.forward is Coverage.RULE
            and (domain, item.op_type) not in golden
        ]
        lines.append((domain or "ai.onnx", "own rule without a golden case", ", ".join(bare) or "none"))
    lines.append(("ai.onnx", "in no model of the tests", ", ".join(sorted(unread)) or "none"))
    return [*tables, Table("Operators by coverage", ("domain", "coverage", "ops"), tuple(lines))]
