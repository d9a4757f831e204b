"""ai.onnx.ml: trees, support vectors, linear models and the encoders around them.

Linear models are one product. A support vector machine is one product with all support vectors, the kernel
function on each result, and a weighted sum per decision. A tree costs each row one comparison per level; the
table of nodes is read once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from predictor.features.dtype import Compute, DType
from predictor.features.graph import Value
from predictor.features.ops.matmul import contract
from predictor.features.ops.parts import copy, pointwise, row_work, work
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import WORK_RULES
from predictor.features.programs.work import Contraction, Elements, Family, OpWork, Rows

_ML = "ai.onnx.ml"
# Split value, feature, two children, mode: 4 bytes each.
_NODE_BYTES = 20
# Per kernel value: gamma * x + coef0, then a power or an exponential.
_KERNEL_FLOPS = {"LINEAR": 0, "POLY": 3, "RBF": 4, "SIGMOID": 3}


def _rows(op: OpView) -> tuple[int, int]:
    """(samples, features) of the first input; a vector is one sample."""
    shape = op.input(0).shape
    return (prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def _linear(op: OpView, targets: int, biases: int) -> OpWork:
    samples, features = _rows(op)
    weights = Value("coefficients", (targets, features), DType.FLOAT32)
    intercepts = Value("intercepts", (biases,), DType.FLOAT32)
    scores = Value("scores", (samples, targets), DType.FLOAT32)
    made = contract(
        op,
        "linear",
        Contraction(1, samples, targets, features),
        reads=(op.input(0), weights, intercepts),
        writes=(scores,),
        compute=Compute.FP32,
        bias_elements=samples * targets if biases else 0,
    )
    return replace(made, parameter_bytes=weights.size_bytes + intercepts.size_bytes)


def _post_transform(op: OpView, scores: Value) -> tuple[OpWork, ...]:
    """Softmax or logistic over the scores, where asked for."""
    kind = op.text("post_transform", "NONE")
    if kind == "NONE":
        return ()
    columns = scores.shape[-1]
    rows = Rows(scores.elements // max(1, columns), columns)
    flops = 4 if kind == "LOGISTIC" else 5
    return (row_work(op, Family.SOFTMAX, "softmax", rows, flops, reads=(scores,), writes=(scores,)),)


@WORK_RULES.register(_ML, "LinearRegressor")
def linear_regressor(op: OpView) -> tuple[OpWork, ...]:
    """x W + b, then the transform."""
    out = op.output()
    biases = len(_floats(op, "intercepts"))
    return (_linear(op, op.integer("targets", 1), biases), *_post_transform(op, out))


def _floats(op: OpView, name: str) -> tuple[object, ...]:
    value = op.attributes.get(name)
    return value if isinstance(value, tuple) else ()


def _labels(op: OpView, scores: Value) -> tuple[OpWork, ...]:
    """The best class of each row."""
    columns = scores.shape[-1] if scores.shape else 1
    rows = Rows(scores.elements // max(1, columns), columns)
    return (row_work(op, Family.REDUCTION, "arg_max", rows, 1, reads=(scores,), writes=(op.output(),)),)


@WORK_RULES.register(_ML, "LinearClassifier")
def linear_classifier(op: OpView) -> tuple[OpWork, ...]:
    """Scores of all classes, the transform, the best class."""
    samples, features = _rows(op)
    targets = max(1, len(_floats(op, "coefficients")) // max(1, features))
    biases = len(_floats(op, "intercepts"))
    scores = op.output(1) if op.has_output(1) else Value("scores", (samples, targets), DType.FLOAT32)
    return (_linear(op, targets, biases), *_post_transform(op, scores), *_labels(op, scores))


def _support_vectors(op: OpView, decisions: int) -> tuple[OpWork, ...]:
    samples, features = _rows(op)
    vectors = op.integers("vectors_per_class")
    count = op.integer("n_supports") or sum(vectors)
    if not count:
        # Without support vectors the coefficients are a hyperplane.
        return (_linear(op, decisions, len(_floats(op, "rho"))),)
    table = Value("support_vectors", (count, features), DType.FLOAT32)
    kernel = Value("kernel", (samples, count), DType.FLOAT32)
    product = contract(
        op,
        "linear",
        Contraction(1, samples, count, features),
        reads=(op.input(0), table),
        writes=(kernel,),
        compute=Compute.FP32,
    )
    works = [replace(product, parameter_bytes=table.size_bytes)]
    flops = _KERNEL_FLOPS.get(op.text("kernel_type", "LINEAR"), 0)
    if flops:
        works.append(pointwise(op, "kernel", flops, reads=(kernel,), writes=(kernel,)))
    coefficients = Value("coefficients", (count, decisions), DType.FLOAT32)
    scores = Value("scores", (samples, decisions), DType.FLOAT32)
    works.append(
        contract(
            op,
            "linear",
            Contraction(1, samples, decisions, count),
            reads=(kernel, coefficients),
            writes=(scores,),
            compute=Compute.FP32,
            bias_elements=samples * decisions,
        )
    )
    return tuple(works)


@WORK_RULES.register(_ML, "SVMRegressor")
def svm_regressor(op: OpView) -> tuple[OpWork, ...]:
    """One decision."""
    return (*_support_vectors(op, 1), *_post_transform(op, op.output()))


@WORK_RULES.register(_ML, "SVMClassifier")
def svm_classifier(op: OpView) -> tuple[OpWork, ...]:
    """One decision per pair of classes, then a vote."""
    samples, _ = _rows(op)
    classes = len(_floats(op, "classlabels_ints")) or len(_floats(op, "classlabels_strings")) or 2
    decisions = max(1, classes * (classes - 1) // 2)
    scores = op.output(1) if op.has_output(1) else Value("scores", (samples, classes), DType.FLOAT32)
    return (*_support_vectors(op, decisions), *_post_transform(op, scores), *_labels(op, scores))


def _mean_depth(children: Mapping[int, tuple[int, ...]], root: int) -> tuple[int, int]:
    """(sum of the leaves' depths, leaves) below `root`; a node without children is a leaf."""
    total = leaves = 0
    pending = [(root, 0)]
    seen = 0
    while pending and seen <= 2 * len(children) + 2:
        seen += 1
        node, depth = pending.pop()
        below = children.get(node, ())
        if below:
            pending.extend((child, depth + 1) for child in below)
        else:
            total += depth
            leaves += 1
    return total, max(1, leaves)


def _forest(op: OpView) -> tuple[int, int, float]:
    """(trees, nodes, mean depth summed over the trees)."""
    true, false = op.integers("nodes_truenodeids"), op.integers("nodes_falsenodeids")
    if op.op_type == "TreeEnsemble":
        true_leaf, false_leaf = op.integers("nodes_trueleafs"), op.integers("nodes_falseleafs")
        # Leaves are numbered apart from nodes: after them here.
        children = {
            index: (t if not tl else len(true) + t, f if not fl else len(true) + f)
            for index, (t, f, tl, fl) in enumerate(zip(true, false, true_leaf, false_leaf, strict=False))
        }
        depths = [_mean_depth(children, root) for root in op.integers("tree_roots")]
        return len(depths), len(true), sum(total / leaves for total, leaves in depths)
    modes = _floats(op, "nodes_modes")
    trees: dict[int, dict[int, tuple[int, ...]]] = {}
    rows = zip(op.integers("nodes_treeids"), op.integers("nodes_nodeids"), true, false, modes, strict=False)
    for tree, node, when_true, when_false, mode in rows:
        trees.setdefault(tree, {})[node] = () if mode == "LEAF" else (when_true, when_false)
    depths = [_mean_depth(children, next(iter(children), 0)) for children in trees.values()]
    return len(trees), len(modes), sum(total / leaves for total, leaves in depths)


@WORK_RULES.register(_ML, "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor")
def trees(op: OpView) -> tuple[OpWork, ...]:
    """A comparison per level of each tree (the mean over its leaves), an addition per tree."""
    samples, _ = _rows(op)
    count, nodes, levels = _forest(op)
    classifier = op.op_type == "TreeEnsembleClassifier"
    scores = op.output(1) if classifier and op.has_output(1) else op.output()
    walked = work(
        op,
        Family.GATHER,
        "tree",
        Rows(samples, max(1, round(levels))),
        reads=(op.input(0),),
        writes=(scores,),
        flops=round(samples * (levels + count)),
        extra_read_bytes=nodes * _NODE_BYTES,
    )
    labels = _labels(op, scores) if classifier else ()
    return (replace(walked, parameter_bytes=nodes * _NODE_BYTES), *_post_transform(op, scores), *labels)


_POINTWISE = {"Binarizer": 1, "Scaler": 2, "Imputer": 1}


@WORK_RULES.register(_ML, *_POINTWISE)
def simple(op: OpView) -> tuple[OpWork, ...]:
    """A comparison, or an offset and a scale."""
    return (pointwise(op, op.op_type.lower(), _POINTWISE[op.op_type]),)


@WORK_RULES.register(_ML, "Normalizer")
def normaliser(op: OpView) -> tuple[OpWork, ...]:
    """Each row by its largest number, its sum of magnitudes or its length."""
    data = op.input(0)
    samples, features = _rows(op)
    flops = {"MAX": 2, "L1": 3, "L2": 3}.get(op.text("norm", "MAX"), 3)
    rows = Rows(samples, features)
    return (
        row_work(op, Family.NORMALIZATION, "unit_norm", rows, flops, reads=(data,), writes=(op.output(),)),
    )


@WORK_RULES.register(_ML, "ArrayFeatureExtractor")
def pick(op: OpView) -> tuple[OpWork, ...]:
    """Reads the elements it picks, and their places."""
    out = op.output()
    picked = Value("picked", out.shape, out.dtype)
    return (
        work(op, Family.GATHER, "gather", Elements(out.elements), reads=(picked, op.input(1)), writes=(out,)),
    )


@WORK_RULES.register(_ML, "LabelEncoder", "CategoryMapper")
def look_up(op: OpView) -> tuple[OpWork, ...]:
    """One look-up an element in a table of keys and values of 8 bytes."""
    data, out = op.input(0), op.output()
    names = ("keys_strings", "keys_int64s", "keys_floats", "cats_int64s")
    entries = max(len(_floats(op, name)) for name in names)
    return (
        work(
            op,
            Family.GATHER,
            "look_up",
            Elements(out.elements),
            reads=(data,),
            writes=(out,),
            extra_read_bytes=16 * entries,
        ),
    )


@WORK_RULES.register(_ML, "OneHotEncoder", "DictVectorizer")
def spread(op: OpView) -> tuple[OpWork, ...]:
    """Zeros and what stands at each category's place."""
    return (copy(op, "one_hot", reads=(op.input(0),), writes=(op.output(),)),)


@WORK_RULES.register(_ML, "FeatureVectorizer")
def join(op: OpView) -> tuple[OpWork, ...]:
    """All features side by side."""
    return (copy(op, "concat", reads=op.present_inputs, writes=(op.output(),)),)


@WORK_RULES.register(_ML, "CastMap", "ZipMap")
def convert(op: OpView) -> tuple[OpWork, ...]:
    """A map into a tensor or the other way."""
    return (copy(op, "cast", reads=(op.input(0),), writes=(op.output(),)),)
