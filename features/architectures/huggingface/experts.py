"""Mixtures of experts: routers, routed and shared experts, and DeepSeek's latent attention.

Tokens are sorted by expert and all experts run in one grouped product (perfcast::GroupedMatMul), as the
implementation does by default. Every token visits its experts whatever the balance, so FLOPs are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnx import TensorProto, helper

from predictor.features.architectures.huggingface.attention import Attention, Rotary
from predictor.features.architectures.huggingface.cache import extended, next_layer
from predictor.features.architectures.huggingface.job import Job
from predictor.features.architectures.huggingface.parts import (
    FeedForward,
    Norm,
    activation,
    buffer,
    scaled,
)
from predictor.features.architectures.layers import merge_heads, split_heads
from predictor.features.builder import GraphBuilder, Tensor


@dataclass(frozen=True, slots=True)
class Router:
    """Chooses `chosen` of `experts` per token.

    Attributes:
        normalised: the chosen weights are divided by their sum.
        sigmoid: scores are sigmoids, and a bias that is no parameter balances the choice (DeepSeek-V3).
        groups, chosen_groups: experts stand in groups, of which a token may use only some; 1 for no groups.
        scale: factor on the weights.
        chosen_first: the softmax is over the chosen experts alone; `bias`: of the scores.
    """

    experts: int
    chosen: int
    normalised: bool = False
    sigmoid: bool = False
    groups: int = 1
    chosen_groups: int = 1
    scale: float | None = None
    chosen_first: bool = False
    bias: bool = False

    def __call__(self, b: GraphBuilder, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(tokens, width) to weights and numbers of the chosen experts, (tokens, chosen) each."""
        gate = b.parameter((rows.size(-1), self.experts), "router.weight")
        logits = b.linear(rows, self.experts, bias=self.bias, weight=gate)
        if self.chosen_first:
            best, numbers = b.op("TopK", [logits, b.constant([self.chosen])], 2)
            return scaled(b, b.softmax(best), self.scale), numbers
        scores = b.sigmoid(logits) if self.sigmoid else b.softmax(logits)
        ranked = b.add(scores, buffer(b, self.experts)) if self.sigmoid else scores
        if self.groups > 1:
            ranked = self._within_groups(b, ranked)
        weights, numbers = b.op("TopK", [ranked, b.constant([self.chosen])], 2)
        if self.sigmoid:
            weights = b.op("GatherElements", [scores, numbers], axis=1)
        if self.normalised:
            weights = b.div(weights, b.op("ReduceSum", [weights, b.constant([-1])], keepdims=1))
        return scaled(b, weights, self.scale), numbers

    def _within_groups(self, b: GraphBuilder, scores: Tensor) -> Tensor:
        """Scores outside the best groups put out of reach."""
        grouped = b.reshape(scores, [-1, self.groups, self.experts // self.groups])
        if self.sigmoid:
            best, _ = b.op("TopK", [grouped, b.constant([2])], 2)
            strength = b.op("ReduceSum", [best, b.constant([-1])], keepdims=0)
        else:
            strength = b.op("ReduceMax", [grouped, b.constant([-1])], keepdims=0)
        _, numbers = b.op("TopK", [strength, b.constant([self.chosen_groups])], 2, sorted=0)
        nothing = b.op("Sub", [strength, strength])
        ones = b.op("Cast", [b.op("GreaterOrEqual", [numbers, b.constant(0)])], to=1)
        open_groups = b.op("ScatterElements", [nothing, numbers, ones], axis=1)
        allowed = b.op("Cast", [b.op("Unsqueeze", [open_groups, b.constant([2])])], to=9)
        return b.reshape(b.op("Where", [allowed, grouped, b.constant(-3.4e38)]), [-1, self.experts])


@dataclass(frozen=True, slots=True)
class Mixture:
    """A feed-forward layer of experts.

    Attributes:
        hidden: width inside each routed expert; all are gated.
        shared: a feed-forward that every token visits.
        shared_gate: the shared one is weighted by a sigmoid of its own projection (Qwen).
        bias: of the experts' products. limit: gate and up-projection are clipped to it, and the latter starts
        at 1 (gpt-oss).
    """

    router: Router
    hidden: int
    activation: str
    shared: FeedForward | None = None
    shared_gate: bool = False
    bias: bool = False
    limit: float | None = None

    def __call__(self, b: GraphBuilder, x: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        width, length = x.size(-1), x.size(1)
        rows = b.reshape(x, [-1, width])
        y = b.reshape(self._routed(b, rows), [-1, length, width])
        if self.shared is None:
            return y
        common = self.shared(b, x)
        if self.shared_gate:
            weight = b.parameter((width, 1), "shared_gate.weight")
            common = b.mul(b.sigmoid(b.linear(x, 1, bias=False, weight=weight)), common)
        return b.add(y, common)

    def _routed(self, b: GraphBuilder, rows: Tensor) -> Tensor:
        width, experts, chosen = rows.size(-1), self.router.experts, self.router.chosen
        weights, numbers = self.router(b, rows)
        flat = b.reshape(numbers, [-1])
        count = b.reshape(b.op("Size", [flat]), [1])
        sorted_numbers, order = b.op("TopK", [flat, count], 2, axis=0, largest=0)
        one = helper.make_tensor("value", TensorProto.INT64, [1], [1])
        ones = b.op("ConstantOfShape", [count], value=one)
        zero = helper.make_tensor("value", TensorProto.INT64, [1], [0])
        nothing = b.op("ConstantOfShape", [b.constant([experts])], value=zero)
        sizes = b.op("ScatterElements", [nothing, sorted_numbers, ones], axis=0, reduction="add")
        ends = b.op("CumSum", [sizes, b.constant(0)])
        picked = b.gather(rows, b.div(order, b.constant(chosen)), axis=0)
        up, down = (experts, width, 2 * self.hidden), (experts, self.hidden, width)
        joined = b.grouped_matmul(picked, up, ends, name="experts.gate_up")
        inner = self._gated(b, self._biased(b, joined, sorted_numbers))
        share = b.gather(b.reshape(weights, [-1, 1]), order, axis=0)
        results = b.grouped_matmul(inner, down, ends, name="experts.down")
        weighted = b.mul(self._biased(b, results, sorted_numbers), share)
        back = b.op("ScatterElements", [order, order, b.op("CumSum", [ones, b.constant(0)])], axis=0)
        ordered = b.reshape(b.gather(weighted, back, axis=0), [-1, chosen, width])
        total: Tensor = b.op("ReduceSum", [ordered, b.constant([1])], keepdims=0)
        return total

    def _biased(self, b: GraphBuilder, rows: Tensor, expert: Tensor) -> Tensor:
        """Every row with the bias of its expert."""
        if not self.bias:
            return rows
        table = b.parameter((self.router.experts, rows.size(-1)), "experts.bias")
        return b.add(rows, b.gather(table, expert, axis=0))

    def _gated(self, b: GraphBuilder, rows: Tensor) -> Tensor:
        gate, passed = b.split(rows, 2, axis=-1)
        if self.limit is not None:
            gate = b.op("Clip", [gate, None, b.constant(self.limit)])
            passed = b.op("Clip", [passed, b.constant(-self.limit), b.constant(self.limit)])
            passed = b.add(passed, b.constant(1.0))
        return b.mul(activation(self.activation)(b, gate), passed)


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention: queries, keys and values pass through low-rank projections.

    Attributes:
        query_rank: width of the queries' latent; None projects them at once.
        key_rank: width of the latent that keys and values share.
        plain, rotated: elements of a head without and with a position; keys share the rotated ones.
        value: elements of a value's head.
    """

    heads: int
    query_rank: int | None
    key_rank: int
    plain: int
    rotated: int
    value: int
    norm: Norm
    bias: bool = False

    def __call__(self, job: Job, x: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        b, size = job.b, self.plain + self.rotated
        rotary = Rotary(self.rotated)
        latent = x
        if self.query_rank is not None:
            latent = self.norm(b, b.linear(x, self.query_rank, bias=self.bias))
        query = split_heads(b, b.linear(latent, self.heads * size, bias=False), self.heads)
        plain, turned = b.split(query, (self.plain, self.rotated), axis=-1)
        turned = rotary(job, turned)

        joined = b.linear(x, self.key_rank + self.rotated, bias=self.bias)
        compressed, position = b.split(joined, (self.key_rank, self.rotated), axis=-1)
        compressed = self.norm(b, compressed)
        position = rotary(job, b.reshape(position, [0, 1, x.size(1), self.rotated]))
        if job.past is not None:
            rows = b.reshape(compressed, [0, 1, x.size(1), self.key_rank])
            cache = extended(job, f"{next_layer(job)}.latent", b.concat([rows, position], axis=-1))
            if self._is_absorbed(job):
                mixed = self._absorbed(b, plain, turned, cache)
                return b.linear(mixed, x.size(-1), bias=self.bias)
            if job.past:
                compressed, position = b.split(cache, (self.key_rank, self.rotated), axis=-1)
                compressed = b.reshape(compressed, [0, job.length, self.key_rank])
        query = b.concat([plain, turned], axis=-1)
        expanded = b.linear(compressed, self.heads * (self.plain + self.value), bias=False)
        plain, values = b.split(split_heads(b, expanded, self.heads), (self.plain, self.value), axis=-1)
        shared = b.op("Expand", [position, b.constant([1, self.heads, 1, 1])])
        key = b.concat([plain, shared], axis=-1)

        core = Attention(self.heads, self.heads, size)
        mixed = core.attend(job, query, key, values)
        return b.linear(merge_heads(b, mixed), x.size(-1), bias=self.bias)

    def _is_absorbed(self, job: Job) -> bool:
        """True where fewer FLOPs meet the latents themselves than keys and values expanded from them.

        Per head, with q new tokens and n in all: the absorbed form asks q n (2 r + t) + q r (p + v)
        multiply-adds, the expanded one q n (p + t + v) + n r (p + v).
        """
        if not job.past:
            return False
        scores, expansion = job.sequence * job.length, self.key_rank * (self.plain + self.value)
        absorbed = scores * (2 * self.key_rank + self.rotated) + job.sequence * expansion
        return absorbed < scores * (self.plain + self.rotated + self.value) + job.length * expansion

    def _absorbed(self, b: GraphBuilder, plain: Tensor, turned: Tensor, cache: Tensor) -> Tensor:
        """(batch, length, heads * value) from the latents, which are keys and values of all heads.

        The halves of the expansion move to the query and to the result (DeepSeek-V2, arXiv 2405.04434,
        section 2.1.2): products per head over all tokens.
        """
        count = plain.size(2)
        to_latent = b.parameter((self.heads, self.plain, self.key_rank), "absorbed_key")
        to_value = b.parameter((self.heads, self.key_rank, self.value), "absorbed_value")
        query = b.matmul(_by_head(b, plain), to_latent)
        query = b.reshape(b.transpose(query, [1, 0, 2]), [-1, count, self.heads, self.key_rank])
        query = b.concat([b.transpose(query, [0, 2, 1, 3]), turned], axis=-1)
        mixed = b.op(
            "LatentAttention",
            [query, cache],
            domain="perfcast",
            value_width=self.key_rank,
            is_causal=1 if count > 1 else None,
        )
        values = b.matmul(_by_head(b, mixed), to_value)
        return b.reshape(b.transpose(values, [1, 0, 2]), [-1, count, self.heads * self.value])


def _by_head(b: GraphBuilder, x: Tensor) -> Tensor:
    """(batch, heads, length, size) to (heads, batch * length, size)."""
    return b.reshape(b.transpose(x, [1, 0, 2, 3]), [0, -1, x.size(3)])


def with_shared(mixture: Mixture, hidden: int, *, gate: bool = False) -> Mixture:
    """The mixture with a shared expert of that width; itself for 0."""
    if not hidden:
        return mixture
    return replace(mixture, shared=FeedForward(hidden, mixture.activation, gated=True), shared_gate=gate)
