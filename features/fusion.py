"""Graph -> graph: blocks that exporters spell out become one node again, so that they cost what the framework runs.

Emitted nodes (inputs in brackets are optional and may be absent or ""). They may occur in a graph of any opset,
so work rules for them must be registered `since=1`.

Standard domain, inputs and attributes as ONNX defines them:
    LayerNormalization(X, Scale[, B])            axis: int (negative or not)
    RMSNormalization(X, Scale)                   axis: int
    GroupNormalization(X, Scale[C], B[C])        num_groups: int
    HardSwish(X)

Domain `perfcast`:
    Gelu(x)                                      spelling: "erf" | "tanh" | "quick"
    Silu(x)                                      spelling: "sigmoid"
    Mish(x)                                      spelling: "softplus"
    Linear(x[..., in], weight[, bias[out]])      transposed_weight: 1 when weight is [out, in] (torch), 0 when [in, out]
    Attention(q[B, H, Lq, D], k[B, Hkv, Lk, D], v[B, Hkv, Lk, Dv][, mask])
                                                 causal: 0 | 1, heads: int, kv_heads: int; mask broadcasts to [B, H, Lq, Lk]
    FusedPointwise(inputs...) -> escaping outputs   (Runtime.COMPILED only)
                                                 kinds: comma-joined op types, flops: int (total), op_count: int

Every fused node also carries `eager_kernel_count`: kernels launched had the block been written with single operators.

Marks:
    Transpose, perfcast_view = 1                 only strides change; nothing is copied
"""
