"""A brute-force simulator: every rank of a plan, every kernel and exchange as an event of its own.

Written apart from the product on purpose: it shares with it the program of a rank, the order of a pipeline's
tasks (predictor.parallel.schedule defines them) and the time of a single collective, nothing else. Ranks meet
in collectives; whoever comes first waits. The averaging of gradients stands still while exchanges inside the
graph hold its links; as those do not wait for it, a first run tells when they do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from predictor.features.programs.work import Phase, Transfer
from predictor.hardware.spec import ClusterSpec
from predictor.parallel.collectives import GroupShape, collective_time_s
from predictor.parallel.plan import Plan
from predictor.parallel.rank_program import RankProgram
from predictor.parallel.schedule import PipelineShape, TaskKind, stage_order
from predictor.types import Schedule
from predictor.units import MIB

Key = tuple[object, ...]


@dataclass
class Network:
    """Tasks with what they wait for."""

    duration_s: dict[Key, float] = field(default_factory=dict)
    waits: dict[Key, set[Key]] = field(default_factory=dict)
    last: dict[tuple[int, str], Key] = field(default_factory=dict)
    holders: set[Key] = field(default_factory=set)
    yields: dict[Key, set[int]] = field(default_factory=dict)
    """Exchanges that hold the links of gradients, and what stands still meanwhile, by its ranks."""

    def add(self, key: Key, duration_s: float, rank: int, stream: str, after: Iterable[Key] = ()) -> Key:
        """Appends a task to a rank's stream; a key that exists already is the same collective's."""
        self.duration_s[key] = duration_s
        waits = self.waits.setdefault(key, set())
        waits.update(after)
        if (rank, stream) in self.last:
            waits.add(self.last[rank, stream])
        self.last[rank, stream] = key
        return key

    def end_s(self) -> float:
        """When everything is done."""
        start = self._starts({})
        if not self.holders or not self.yields:
            return self._latest(start, {})
        held: dict[int, list[tuple[float, float]]] = {}
        for key in self.holders:
            for rank in key[1]:  # type: ignore[attr-defined]
                held.setdefault(rank, []).append((start[key], start[key] + self.duration_s[key]))
        return self._latest(self._starts(held), held)

    def _latest(self, start: dict[Key, float], held: dict[int, list[tuple[float, float]]]) -> float:
        return max(self._done_s(key, at, held) for key, at in start.items())

    def _done_s(self, key: Key, start_s: float, held: dict[int, list[tuple[float, float]]]) -> float:
        """End of a task, which stands still while a link of its ranks is held."""
        left, now = self.duration_s[key], start_s
        spans = {span for rank in self.yields.get(key, ()) for span in held.get(rank, ())}
        for begin, end in sorted(spans):
            if end <= now:
                continue
            if now + left <= begin:
                break
            left -= max(0.0, begin - now)
            now = end
        return now + left

    def _starts(self, held: dict[int, list[tuple[float, float]]]) -> dict[Key, float]:
        """When each task starts: longest path, task by task."""
        missing = {key: len(waits) for key, waits in self.waits.items()}
        followers: dict[Key, list[Key]] = {}
        for key, waits in self.waits.items():
            for before in waits:
                followers.setdefault(before, []).append(key)
        start = dict.fromkeys(self.waits, 0.0)
        ready = [key for key, count in missing.items() if not count]
        done = 0
        while ready:
            key = ready.pop()
            done += 1
            end = self._done_s(key, start[key], held)
            for other in followers.get(key, ()):
                start[other] = max(start[other], end)
                missing[other] -= 1
                if not missing[other]:
                    ready.append(other)
        assert done == len(self.waits), "tasks wait for one another"
        return start


class RankSimulator:
    """One iteration of all ranks of a plan."""

    def __init__(
        self,
        rank: RankProgram,
        kernel_s: Sequence[float],
        plan: Plan,
        cluster: ClusterSpec,
        ends: Sequence[int],
        *,
        training: bool = True,
    ) -> None:
        assert rank.graph is not None
        assert rank.pieces is not None
        self.rank, self.kernel_s, self.plan, self.cluster = rank, kernel_s, plan, cluster
        self.graph, self.pieces, self.training = rank.graph, rank.pieces, training
        self.chunks = len(ends) // plan.pp
        self.ends = list(ends)
        schedule = plan.schedule if plan.pp > 1 else Schedule.ONE_F_ONE_B
        self.shape = PipelineShape(schedule, plan.pp, self.chunks, plan.microbatches, training)
        self.network = Network()
        self.counts: Counter[Key] = Counter()
        self.data_gradients: dict[tuple[int, str], Key] = {}
        self._sort_ops()

    def _sort_ops(self) -> None:
        """Ops by piece and phase, weights by piece, gradients by op."""
        piece_of = dict(zip((n.name for n in self.pieces.nodes), self.pieces.piece_of_nodes(), strict=True))
        self.ops: dict[tuple[Phase, int], list[int]] = {}
        current = 0
        for index, op in enumerate(self.rank.program.ops):
            if op.work.phase is Phase.OPTIMIZER:
                continue
            if op.node in piece_of:
                current = piece_of[op.node]
            elif op.work.phase is Phase.BACKWARD:
                current = len(self.pieces) - 1
            self.ops.setdefault((op.work.phase, current), []).append(index)
        self.gradients: dict[int, list[int]] = {}
        for gradient in self.rank.program.gradients:
            self.gradients.setdefault(gradient.op_index, []).append(gradient.size_bytes)
        self.weights: list[dict[str, int]] = [{} for _ in range(self.plan.pp)]
        self.piece_weights: list[dict[str, int]] = [{} for _ in range(len(self.pieces))]
        first: set[str] = set()
        for node, piece in zip(self.pieces.nodes, self.pieces.piece_of_nodes(), strict=True):
            for name in node.inputs:
                stage = self._chunk(piece) % self.plan.pp
                if name not in self.graph.parameters or name in self.weights[stage]:
                    continue
                size = self.graph.values[name].size_bytes
                self.weights[stage][name] = self.piece_weights[piece][name] = size
                if name in first:
                    # A later stage's copy: complete when the piece's backward pass is.
                    done = self.ops[Phase.BACKWARD, piece][-1]
                    self.gradients.setdefault(done, []).append(size)
                first.add(name)
        self.optimizer_s = sum(
            self.kernel_s[i] for i, op in enumerate(self.rank.program.ops) if op.work.phase is Phase.OPTIMIZER
        )

    def _chunk(self, piece: int) -> int:
        return next(q for q, end in enumerate(self.ends) if piece < end)

    def end_s(self) -> float:
        """Length of the iteration."""
        for rank in range(self.plan.device_count):
            self._run(rank)
        return self.network.end_s()

    # Places

    def _place(self, members: Sequence[int]) -> GroupShape:
        nodes = Counter(member // self.cluster.devices_per_node for member in members)
        return GroupShape(max(nodes.values()), len(nodes), min(nodes.values()), len(members))

    def _collective(
        self, rank: int, stream: str, kind: str, size: float, group: Sequence[int], *after: Key
    ) -> Key:
        """A collective of `group`, the next one of its kind on this stream; `rank` takes part."""
        members = tuple(sorted(group))
        counter = (rank, stream, members)
        number = self.counts[counter]
        self.counts[counter] += 1
        time_s = collective_time_s(kind, float(size), self._place(members), self.cluster)
        return self.network.add((stream, members, number), time_s, rank, stream, after)

    def _stage_of(self, rank: int) -> int:
        return sorted(self.plan.group_ranks("pp", rank)).index(rank)

    def _replicas(self, rank: int) -> tuple[list[int], list[int]]:
        """(ranks that share a copy with `rank`, ranks that hold the same shard)."""
        group = sorted(self.plan.group_ranks("dp_cp", rank))
        shards = self.plan.shard_size
        position = group.index(rank)
        first = position // shards * shards
        return group[first : first + shards], group[position % shards :: shards]

    # One rank

    def _run(self, rank: int) -> None:
        stage = self._stage_of(rank)
        order = list(stage_order(self.shape, stage))
        last_kind = TaskKind.WEIGHT if self.shape.splits_backward else TaskKind.BACKWARD
        self.reductions: list[tuple[list[float], list[Key]]] = []
        self.buckets: dict[int, list[float]] = {}
        for position, (kind, chunk, microbatch) in enumerate(order):
            q = chunk * self.plan.pp + stage
            reduces = kind is last_kind and (
                self.plan.zero == 2
                or not any(k is last_kind and c == chunk for k, c, _ in order[position + 1 :])
            )
            self._task(rank, kind, q, microbatch, reduces=reduces and self.plan.zero != 3)
        if self.training:
            self._after(rank, stage)

    def _task(self, rank: int, kind: TaskKind, q: int, microbatch: int, *, reduces: bool) -> None:
        q_count, p = len(self.ends), self.plan.pp
        begin = self.ends[q - 1] if q else 0
        pieces = list(range(begin, self.ends[q]))
        after: list[Key] = []
        if kind is TaskKind.FORWARD and q > 0:
            after = [("message", self._neighbour(rank, -1), kind, q - 1, microbatch)]
        if kind is TaskKind.BACKWARD and q < q_count - 1:
            after = [("message", self._neighbour(rank, 1), kind, q + 1, microbatch)]
        self.network.add(("begin", rank, kind, q, microbatch), 0.0, rank, "compute", after)
        shares = self.plan.zero == 3 and len(self.plan.group_ranks("dp_cp", rank)) > 1
        if kind is TaskKind.FORWARD:
            self._pass(rank, Phase.FORWARD, pieces, shares, kept=False)
        else:
            split = None if not self.shape.splits_backward else kind is TaskKind.WEIGHT
            self._pass(rank, Phase.BACKWARD, pieces[::-1], shares, kept=True, split=split)
        if reduces:
            self._reduce(rank, q)
        step = {TaskKind.FORWARD: 1, TaskKind.BACKWARD: -1}.get(kind, 0)
        if p > 1 and step and 0 <= q + step < q_count:
            key = ("message", rank, kind, q, microbatch)
            sender_q = q if step == 1 else q - 1
            time_s = self._message_s(rank, self._neighbour(rank, step), sender_q)
            self.network.add(key, time_s, rank, f"link {step}", [self.network.last[rank, "compute"]])

    def _neighbour(self, rank: int, step: int) -> int:
        ring = sorted(self.plan.group_ranks("pp", rank))
        return ring[(ring.index(rank) + step) % len(ring)]

    def _message_s(self, sender: int, receiver: int, q: int) -> float:
        names = self.pieces.crossing[self.ends[q] - 1]
        size = float(sum(self.graph.values[name].size_bytes for name in names))
        pair = self._place((sender, receiver))
        whole = collective_time_s("send_recv", size, pair, self.cluster)
        tensor = self.plan.group_ranks("tp", sender)
        if len(tensor) == 1 or self.plan.sequence_parallel:
            return whole
        part = collective_time_s("send_recv", size / len(tensor), pair, self.cluster)
        return min(whole, part + collective_time_s("all_gather", size, self._place(tensor), self.cluster))

    def _pass(
        self,
        rank: int,
        phase: Phase,
        pieces: list[int],
        shares: bool,
        *,
        kept: bool,
        split: bool | None = None,
    ) -> None:
        """All ops of the pieces; with `shares`, weights are gathered one piece ahead."""
        self.ready: dict[int, Key] = {}
        copy, twins = self._replicas(rank)
        sizes = [float(sum(self.piece_weights[piece].values())) for piece in pieces]
        gathered: dict[int, Key] = {}

        def gather(position: int, after: Key) -> None:
            if shares and position < len(pieces) and sizes[position] and not (kept and position == 0):
                gathered[position] = self._collective(
                    rank, "replicas", "all_gather", sizes[position], copy, after
                )

        here = self.network.last[rank, "compute"]
        gather(0, here)
        for position, piece in enumerate(pieces):
            start = self.network.add(
                ("start", rank, self._number()),
                0.0,
                rank,
                "compute",
                [gathered[position]] if position in gathered else [],
            )
            if self.plan.overlap:
                gather(position + 1, start)
            for index in self.ops.get((phase, piece), ()):
                self._op(rank, index, split)
            done = self.network.last[rank, "compute"]
            reduced: list[Key] = []
            if shares and phase is Phase.BACKWARD and sizes[position]:
                self._collective(rank, "replicas", "reduce_scatter", sizes[position], copy, done)
                shard = sizes[position] / len(copy)
                reduced = [self._collective(rank, "replicas", "all_reduce", shard, twins, done)]
            if not self.plan.overlap and shares:
                done = self.network.add(("wait", rank, self._number()), 0.0, rank, "compute", reduced)
                gather(position + 1, done)
        if shares and (rank, "replicas") in self.network.last:
            last = self.network.last[rank, "replicas"]
            self.network.add(("wait", rank, self._number()), 0.0, rank, "compute", [last])

    def _number(self) -> int:
        self.counts["number",] += 1
        return self.counts["number",]

    def _op(self, rank: int, index: int, split: bool | None) -> None:
        op = self.rank.program.ops[index]
        shape = op.work.shape
        is_weight = op.work.kind.endswith("weight_gradient")
        if split is not None and is_weight is not split:
            return
        if isinstance(shape, Transfer):
            group = self.plan.group_ranks(shape.group, rank)
            before = self.rank.program.ops[index - 1].node
            if op.work.phase is Phase.BACKWARD and split is None and self.plan.overlap:
                # Runs beside the weight gradient of the product whose input gradient it exchanges.
                start = self.data_gradients.get((rank, before), self.network.last[rank, "compute"])
                key = self._collective(rank, "tensor", shape.kind.value, shape.size_bytes, group, start)
                self.network.add(("wait", rank, self._number()), 0.0, rank, "compute", [key])
            else:
                key = self._collective(rank, "compute", shape.kind.value, shape.size_bytes, group)
            replicas = self._place(self.plan.group_ranks("dp_cp", rank))
            if (self._place(group).nodes > 1) is (replicas.nodes > 1):
                self.network.holders.add(key)
        else:
            key = self.network.add(("op", rank, self._number()), self.kernel_s[index], rank, "compute")
            if op.work.kind.endswith("data_gradient"):
                self.data_gradients[rank, op.node] = key
        if index in self.gradients:
            self.ready[index] = self.network.last[rank, "compute"]

    def _reduce(self, rank: int, q: int) -> None:
        """Buckets of the pass that has just run, or of its end where weight gradients come last."""
        end = self.network.last[rank, "compute"]
        indices = sorted(
            index
            for piece in range(self.ends[q - 1] if q else 0, self.ends[q])
            for index in self.ops.get((Phase.BACKWARD, piece), ())
            if index in self.gradients
        )
        whole = self.shape.splits_backward
        held, limit, marker = 0.0, float(min(MIB, self.plan.bucket_bytes)), end
        sizes: list[float] = []
        ready: list[Key] = []
        for index in indices:
            held += sum(self.gradients[index])
            marker = end if whole else self.ready[index]
            if held >= limit:
                sizes.append(held)
                ready.append(marker)
                held, limit = 0.0, float(self.plan.bucket_bytes)
        if held:
            sizes.append(held)
            ready.append(marker)
        self.reductions.append((sizes, ready))
        self.buckets[q] = sizes
        if self.plan.overlap:
            self._send(rank, sizes, ready)

    def _send(self, rank: int, sizes: list[float], ready: list[Key]) -> None:
        copy, twins = self._replicas(rank)
        group = self.plan.group_ranks("dp_cp", rank)
        sent: list[Key] = []
        for size, key in zip(sizes, ready, strict=True):
            if not self.plan.zero:
                sent.append(self._collective(rank, "replicas", "all_reduce", size, group, key))
            else:
                sent.append(self._collective(rank, "replicas", "reduce_scatter", size, copy, key))
                sent.append(self._collective(rank, "replicas", "all_reduce", size / len(copy), twins, key))
        if self.plan.zero < 2 and self.plan.overlap:
            for key in sent:
                self.network.yields.setdefault(key, set()).add(rank)

    def _after(self, rank: int, stage: int) -> None:
        if not self.plan.overlap:
            end = self.network.last[rank, "compute"]
            for sizes, _ in self.reductions:
                self._send(rank, sizes, [end] * len(sizes))
        waits = [self.network.last[rank, "replicas"]] if (rank, "replicas") in self.network.last else []
        self.network.add(("reduced", rank), 0.0, rank, "compute", waits)
        self._tied(rank, stage)
        held = float(sum(self.weights[stage].values()))
        total = float(sum(self.graph.values[name].size_bytes for name in self.graph.parameters))
        copy, _ = self._replicas(rank)
        shards = len(copy) if self.plan.zero else 1
        step = self.network.add(
            ("step", rank), self.optimizer_s * held / total / shards if total else 0.0, rank, "compute"
        )
        if self.plan.zero in (1, 2):
            for sizes in self.buckets.values():
                for size in sizes:
                    self._collective(rank, "replicas", "all_gather", size, copy, step)

    def _tied(self, rank: int, stage: int) -> None:
        """Gradients of weights that stages share are averaged among them once all are ready."""
        holders: dict[str, set[int]] = {}
        for other, weights in enumerate(self.weights):
            for name in weights:
                holders.setdefault(name, set()).add(other)
        ring = sorted(self.plan.group_ranks("pp", rank))
        sizes: Counter[tuple[int, ...]] = Counter()
        for name, found in holders.items():
            if len(found) > 1:
                sizes[tuple(sorted(found))] += self.graph.values[name].size_bytes
        for stages, size in sorted(sizes.items()):
            if stage in stages:
                members = [ring[other] for other in stages]
                self._collective(rank, "compute", "all_reduce", float(size), members)


def is_simulated(plan: Plan) -> bool:
    """What the simulator covers: no experts, no rings, weight gradients put off without ZeRO-2."""
    return plan.ep == 1 and not (plan.schedule is Schedule.ZERO_BUBBLE and plan.zero >= 2)
