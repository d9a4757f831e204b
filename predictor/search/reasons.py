"""Why one plan loses to another: where its iteration is longer, in the words of the breakdown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from predictor.parallel.plan import Plan
from predictor.search.search import Found
from predictor.units import format_time

_WORDS: Mapping[str, str] = {
    "forward": "forward kernels",
    "backward": "backward kernels",
    "optimizer": "the optimizer's step",
    "host_launch": "waiting for the host",
    "communication": "exchanges of replicas",
    "tp_communication": "tensor-parallel exchanges",
    "cp_communication": "exchanges along the sequence",
    "ep_communication": "exchanges of experts",
    "pp_communication": "messages between stages",
    "pipeline_bubble": "pipeline bubbles",
    "offload": "waiting for the host's memory",
}
# Parts below this share of the difference are left out.
_NOTABLE = 0.15


def plan_words(plan: Plan) -> str:
    """A plan as people write it: what differs from one device that runs its batch at once."""
    plain = Plan()
    parts = []
    for field in fields(plan):
        value = getattr(plan, field.name)
        if value == getattr(plain, field.name):
            continue
        name = field.name.replace("_", " ")
        if value is True:
            parts.append(name)
        elif isinstance(value, tuple | frozenset):
            parts.append(f"{name} {'+'.join(value)}")
        else:
            parts.append(f"{name} {value}")
    return ", ".join(parts) or "one device"


def why_it_loses(best: Found, other: Found) -> str:
    """One sentence on what `other` spends more than `best`, and what it saves."""
    if other.value <= best.value:
        return "as good as the best"
    before, after = best.outcome.breakdown_s, other.outcome.breakdown_s
    change = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in dict.fromkeys([*before, *after])}
    total = other.outcome.time_s - best.outcome.time_s
    worth = max(abs(total) * _NOTABLE, 1e-12)
    more = [name for name, delta in sorted(change.items(), key=lambda item: -item[1]) if delta > worth]
    less = [name for name, delta in sorted(change.items(), key=lambda item: item[1]) if delta < -worth]
    said = [f"{format_time(change[name])} more {_WORDS.get(name, name)}" for name in more[:3]]
    saved = [f"{format_time(-change[name])} of {_WORDS.get(name, name)}" for name in less[:2]]
    sentence = ", ".join(said)
    if saved:
        sentence += f"{'; ' if sentence else ''}it saves " + ", ".join(saved)
    devices = other.devices - best.devices
    if devices and total <= 0:
        sentence += f"{'; ' if sentence else ''}{abs(devices)} {'more' if devices > 0 else 'fewer'} devices"
    return sentence or "a little more of everything"
