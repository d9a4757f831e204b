"""Fuzzes what strangers can send: the reader, the program builder and the stripper (G6).

    python benchmarks/fuzz.py --minutes 20 --seed N [--workers 2] [--write]
    python benchmarks/fuzz.py --seed N --replay NUMBER

Minutes are CPU minutes over all workers. Every input is read in a child process with limits on CPU time and
memory. A finding is an exception that is no PerfcastError, more than TIME_LIMIT_S of CPU, more than
MEMORY_LIMIT_BYTES of new memory, or the death of the child; its input is written to a file. Exit code 1 when
there are findings.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random

from fuzz_inputs import make_input, save, seeds
from record import cpu_s, forget_peak, own_bytes, table, write

from predictor.errors import PerfcastError
from predictor.features.programs.program import build_program
from predictor.features.reading.reader import read_graph
from predictor.features.reading.strip import strip_model
from predictor.types import Mode, Optimizer, Precision, Runtime

TIME_LIMIT_S = 5.0
MEMORY_LIMIT_BYTES = 2**30
# Modules that are loaded late may map more than an input needs.
_HEADROOM_BYTES = 2**29
# A message that quotes a whole name bomb is no clear message.
_MESSAGE_LIMIT = 4000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one input; `finding` is empty when all is well."""

    number: int
    change: str
    result: str
    cpu_s: float
    memory_bytes: int
    finding: str = ""


@dataclass(slots=True)
class Totals:
    """Running totals of all inputs."""

    tried: int = 0
    cpu_s: float = 0.0
    results: Counter[str] = field(default_factory=Counter)
    slowest: Outcome | None = None
    largest: Outcome | None = None
    findings: dict[str, list[Outcome]] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> bool:
        """Counts one outcome; True for the first finding of its kind."""
        self.tried += 1
        self.results[outcome.result] += 1
        if self.slowest is None or outcome.cpu_s > self.slowest.cpu_s:
            self.slowest = outcome
        if self.largest is None or outcome.memory_bytes > self.largest.memory_bytes:
            self.largest = outcome
        if not outcome.finding:
            return False
        known = self.findings.setdefault(outcome.finding, [])
        known.append(outcome)
        return len(known) == 1


def try_input(seed: int, number: int) -> Outcome:
    """Reads one input as a user would; never raises."""
    change, data = make_input(seed, number)
    rng = Random(f"{seed}:{number}:use")
    forget_peak()
    before = own_bytes("VmRSS")
    start_s = time.process_time()
    finding = ""
    try:
        result = _use(data, rng)
    except PerfcastError as error:
        result = f"{type(error).__name__}: {_pattern(error.message)}"
        if len(error.message) > _MESSAGE_LIMIT or "\n" in error.message:
            finding = f"message of {type(error).__name__} is long or of many lines: {_where(error)}"
    except MemoryError:
        result = finding = "memory limit"
    except Exception as error:  # That is what is looked for.
        result = f"{type(error).__name__} at {_where(error)}"
        finding = result
    used_s = time.process_time() - start_s
    grown = max(0, own_bytes("VmHWM") - before)
    if used_s > TIME_LIMIT_S:
        finding = finding or f"slow: {change}"
    if grown > MEMORY_LIMIT_BYTES:
        finding = finding or f"large: {change}"
    return Outcome(number, change, result, used_s, grown, finding)


def _use(data: bytes, rng: Random) -> str:
    if rng.random() < 0.1:
        strip_model(data)
    source: bytes | Path = data
    with tempfile.TemporaryDirectory() as folder:
        if rng.random() < 0.2:
            source = Path(folder) / "model.onnx"
            source.write_bytes(data)
        graph = read_graph(source, batch=rng.choice((None, None, 4)))
    training = rng.random() < 0.5
    # Inference engines refuse to train before they look at anything.
    runtimes = (Runtime.EAGER, Runtime.COMPILED) if training else tuple(Runtime)
    build_program(
        graph,
        mode=Mode.TRAIN if training else Mode.INFER,
        precision=rng.choice((Precision.FP32, Precision.AMP, Precision.BF16)),
        optimizer=Optimizer.ADAMW if training else Optimizer.NONE,
        runtime=rng.choice(runtimes),
        strict=rng.random() < 0.1,
    )
    return "answered"


def _pattern(message: str) -> str:
    """The message without what differs from input to input."""
    without_names = re.sub(r"'[^']*'|\"[^\"]*\"|[-\d][\d.x*]*", "#", message)
    return re.sub(r"\w+ #", "#", without_names)[:60]


def _where(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/features/" in frame.filename]
    if not frames:
        frames = list(traceback.extract_tb(error.__traceback__))
    return f"{Path(frames[-1].filename).name}:{frames[-1].name}:{frames[-1].lineno}"


def _work(seed: int, pipe: Connection, niceness: int) -> None:
    """A child: tries the inputs whose numbers arrive, until there are no more."""
    os.nice(niceness)
    seeds()
    limit = own_bytes("VmSize") + MEMORY_LIMIT_BYTES + _HEADROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    while True:
        try:
            number = pipe.recv()
        except EOFError:
            return
        pipe.send(try_input(seed, number))


class Worker:
    """A child process and the input that it works on."""

    def __init__(self, seed: int, niceness: int) -> None:
        self.seed = seed
        self.niceness = niceness
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        self.pipe: Connection = ours
        self.process: BaseProcess = context.Process(
            target=_work, args=(self.seed, theirs, self.niceness), daemon=True
        )
        self.process.start()
        theirs.close()
        self.number = -1
        self.cpu_before_s = 0.0

    def give(self, number: int) -> None:
        """Sends the next input."""
        self.number = number
        self.cpu_before_s = cpu_s(self.process.pid or 0)
        self.pipe.send(number)

    def overdue(self) -> bool:
        """True when the child has used far more CPU on its input than allowed, seeds and all."""
        return cpu_s(self.process.pid or 0) - self.cpu_before_s > 4 * TIME_LIMIT_S

    def replace(self, why: str) -> Outcome:
        """Ends the child, starts another; what it worked on is a finding."""
        self.process.kill()
        self.process.join()
        change = make_input(self.seed, self.number)[0]
        outcome = Outcome(self.number, change, why, 4 * TIME_LIMIT_S, 0, f"{why}: {change}")
        self._start()
        return outcome


def fuzz(seed: int, cpu_minutes: float, workers: int, folder: Path, niceness: int = 19) -> Totals:
    """Tries inputs until the CPU time is used; writes the first input of each kind of finding to `folder`."""
    totals = Totals()
    pool = [Worker(seed, niceness) for _ in range(workers)]
    number = 0
    shown_s = 0.0
    for worker in pool:
        worker.give(number)
        number += 1
    while totals.cpu_s < 60 * cpu_minutes:
        ready = set(wait([worker.pipe for worker in pool], timeout=1.0))
        for worker in pool:
            if worker.pipe in ready:
                try:
                    outcome = worker.pipe.recv()
                except EOFError:
                    outcome = worker.replace("the process died")
            elif worker.overdue():
                outcome = worker.replace("hang")
            else:
                continue
            # All the child did for it, making the input included.
            totals.cpu_s += max(outcome.cpu_s, cpu_s(worker.process.pid or 0) - worker.cpu_before_s)
            if totals.add(outcome):
                path = save(folder, seed, outcome.number)
                print(f"finding: {outcome.finding} ({outcome.change}) -> {path}", file=sys.stderr, flush=True)
            worker.give(number)
            number += 1
            if totals.cpu_s > shown_s + 60:
                shown_s = totals.cpu_s
                print(f"{totals.tried} inputs, {shown_s / 60:.1f} CPU minutes", file=sys.stderr, flush=True)
    for worker in pool:
        worker.process.kill()
    return totals


def report(totals: Totals) -> str:
    """What was tried and found, in Markdown."""
    slowest, largest = totals.slowest, totals.largest
    refused = [name for name in totals.results if name != "answered"]
    kinds = Counter(name.partition(":")[0] for name in totals.results.elements())
    rows = [
        ("inputs", f"{totals.tried:,}"),
        ("CPU minutes", f"{totals.cpu_s / 60:.1f}"),
        ("answered", f"{totals.results['answered']:,}"),
        ("distinct errors (class and wording)", f"{len(refused):,}"),
        ("slowest input", f"{slowest.cpu_s:.2f} s ({slowest.change})" if slowest else ""),
        ("most memory", f"{largest.memory_bytes / 2**20:.0f} MiB ({largest.change})" if largest else ""),
        ("findings", str(len(totals.findings))),
    ]
    parts = [table(("what", "measured"), rows)]
    parts.append(table(("result", "inputs"), [(name, f"{count:,}") for name, count in kinds.most_common()]))
    for finding, outcomes in totals.findings.items():
        parts.append(f"- {finding}: {len(outcomes)} inputs, first {outcomes[0].number}")
    return "\n\n".join(parts)


def main() -> int:
    """Runs the fuzzer; 1 when it found something."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0, help="CPU minutes over all workers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--nice", type=int, default=19, help="added to the niceness of the workers")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "perfcast-fuzz")
    parser.add_argument("--replay", type=int, help="try one input of --seed alone, in this process")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/fuzz.md")
    options = parser.parse_args()
    if options.replay is not None:
        print(save(options.out, options.seed, options.replay))
        print(try_input(options.seed, options.replay))
        return 0
    totals = fuzz(options.seed, options.minutes, options.workers, options.out, options.nice)
    body = report(totals)
    print(body)
    if options.write:
        command = f"python benchmarks/fuzz.py --minutes {options.minutes:g} --seed {options.seed} --write"
        print(f"wrote {write('fuzz', 'Fuzzing', command, 'none', body)}")
    return int(bool(totals.findings))


if __name__ == "__main__":
    raise SystemExit(main())
