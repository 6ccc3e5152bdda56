"""The transformer; the only file that imports flax.

Decoder-only: RMSNorm before each sublayer, rotary positions, grouped-query attention, SwiGLU, tied
or untied head. The network is authored with `flax.nnx` and leaves this file as pure functions of
plain nested dicts: merging a dict into the graph costs nothing inside a jitted function.

One function attends, for whole sequences and for decoding: position t of a row lies in slot t of
its cache and sees the slots 0..t. A full forward pass is the case without a cache.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rlcredit.types import Array, InputError, Policy, PyTree

ValueHead = Literal["none", "shared", "separate"]
Dtype = Literal["float32", "bfloat16"]
Cache = list[tuple[Array, Array]]  # per layer keys and values, [B, kv_heads, slots, head_width]


class Architecture(NamedTuple):
    """The size and form of the network."""

    vocabulary: int
    width: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    hidden_factor: float = 3.0  # width of the SwiGLU layer over `width`
    tied: bool = False  # head = embedding transposed
    value_head: ValueHead = "none"
    dtype: Dtype = "float32"  # of the computation; parameters are float32


def transformer(architecture: Architecture) -> Policy:
    """The network as pure functions.

    Raises: InputError for sizes that do not divide.
    """
    _check(architecture)
    # Shapes are enough for the graph; parameters come from `init` or from a checkpoint.
    abstract = nnx.eval_shape(lambda: _Network(architecture, rngs=nnx.Rngs(0)))
    graph, _ = nnx.split(abstract)
    head_width = architecture.width // architecture.heads

    def init(key: Array) -> PyTree:
        network = _Network(architecture, rngs=nnx.Rngs(key))
        return nnx.to_pure_dict(nnx.state(network))

    def forward(
        params: PyTree, tokens: Array, segment: Array | None = None
    ) -> tuple[Array, Array | None]:
        network = nnx.merge(graph, params)
        hidden = network.policy(tokens, segment)
        return hidden, network.value(tokens, hidden, segment)

    def head(params: PyTree) -> Array:
        return nnx.merge(graph, params).policy.head_matrix()

    def init_cache(batch: int, slots: int) -> Cache:
        shape = (batch, architecture.kv_heads, slots, head_width)
        empty = jnp.zeros(shape, architecture.dtype)
        return [(empty, empty)] * architecture.layers

    def extend(
        params: PyTree, cache: Cache | None, tokens: Array, slot: Array
    ) -> tuple[Array, Cache]:
        return nnx.merge(graph, params).policy.extend(tokens, cache, slot)

    return Policy(
        init=init,
        forward=forward,
        head=head,
        init_cache=init_cache,
        extend=extend,
        vocabulary=architecture.vocabulary,
        has_value=architecture.value_head != "none",
    )


class _Network(nnx.Module):
    """The policy and, where asked for, its critic."""

    def __init__(self, architecture: Architecture, *, rngs: nnx.Rngs):
        self.policy = _Trunk(architecture, rngs=rngs)
        kind = architecture.value_head
        self.critic = _Trunk(architecture, rngs=rngs) if kind == "separate" else None
        self.value_head = None if kind == "none" else _ValueHead(architecture, rngs=rngs)

    def value(self, tokens: Array, hidden: Array, segment: Array | None) -> Array | None:
        """[B, T] value of the prefix that ends with each token."""
        if self.value_head is None:
            return None
        return self.value_head(hidden if self.critic is None else self.critic(tokens, segment))


class _Trunk(nnx.Module):
    """Embedding, blocks, final norm: tokens to hidden states."""

    def __init__(self, architecture: Architecture, *, rngs: nnx.Rngs):
        width, vocabulary = architecture.width, architecture.vocabulary
        self.dtype = jnp.dtype(architecture.dtype)
        # Scaled so that a tied head gives logits of order one at the start.
        self.embedding = _matrix(rngs, vocabulary, width, scale=width**-0.5)
        self.blocks = nnx.List(
            [_Block(architecture, rngs=rngs) for _ in range(architecture.layers)]
        )
        self.norm = _RMSNorm(width)
        # Small, so that a new policy is nearly uniform and has everything to explore.
        self.head = (
            None if architecture.tied else _matrix(rngs, width, vocabulary, 0.1 * width**-0.5)
        )

    def __call__(self, tokens: Array, segment: Array | None = None) -> Array:
        return self.extend(tokens, None, jnp.zeros(1, jnp.int32), segment)[0]

    def extend(
        self, tokens: Array, cache: Cache | None, slot: Array, segment: Array | None = None
    ) -> tuple[Array, Cache]:
        """Hidden states [B, S, H] of tokens in slots slot..slot+S-1, and the cache with them.

        Without a cache they are all there is, and the cache that comes out has S slots. What lies
        beyond the last slot is not written. Of `segment` [B, S], without a cache only, slots see
        their own number: rotary positions are relative, so each may start anywhere in the row.
        """
        slots = slot[:, None] + jnp.arange(tokens.shape[1])[None]  # [B or 1, S]
        count = tokens.shape[1] if cache is None else cache[0][0].shape[2]
        rotation = tuple(table[slots] for table in _rotations(count, self.blocks[0].head_width))
        seen = jnp.arange(count)
        visible = seen[None, None] <= slots[..., None]  # [B or 1, S, slots]
        if segment is not None:
            visible = visible & (segment[:, :, None] == segment[:, None, :])
        # Undoes the small rows that a tied head wants, so that a block adds to, not drowns, them.
        scale = self.embedding[...].shape[1] ** 0.5
        hidden = (self.embedding[...][tokens] * scale).astype(self.dtype)
        new_cache = []
        for layer, block in enumerate(self.blocks):
            layer_cache = None if cache is None else cache[layer]
            hidden, layer_cache = block(hidden, rotation, visible, layer_cache, slots)
            new_cache.append(layer_cache)
        return self.norm(hidden), new_cache

    def head_matrix(self) -> Array:
        return self.embedding[...].T if self.head is None else self.head[...]


class _Block(nnx.Module):
    """Attention and SwiGLU, each after a norm and added to what came in."""

    def __init__(self, architecture: Architecture, *, rngs: nnx.Rngs):
        width, heads, kv_heads = architecture.width, architecture.heads, architecture.kv_heads
        inner = int(architecture.hidden_factor * width)
        self.head_width = width // heads
        self.kv_heads = kv_heads
        self.attention_norm, self.mlp_norm = _RMSNorm(width), _RMSNorm(width)
        self.query_key_value = _matrix(rngs, width, (heads + 2 * kv_heads) * self.head_width)
        # Smaller where a sublayer joins the residual, so that depth does not raise its variance.
        join = (2 * architecture.layers) ** -0.5
        self.attention_out = _matrix(rngs, width, width, scale=join * width**-0.5)
        self.gate_and_up = _matrix(rngs, width, 2 * inner)
        self.down = _matrix(rngs, inner, width, scale=join * inner**-0.5)

    def __call__(
        self,
        hidden: Array,
        rotation: tuple[Array, Array],
        visible: Array,
        cache: tuple[Array, Array] | None,
        slots: Array,
    ) -> tuple[Array, tuple[Array, Array]]:
        attended, cache = self._attend(self.attention_norm(hidden), rotation, visible, cache, slots)
        hidden = hidden + attended
        gate, up = jnp.split(_apply(self.gate_and_up, self.mlp_norm(hidden)), 2, axis=-1)
        return hidden + _apply(self.down, jax.nn.silu(gate) * up), cache

    def _attend(self, x, rotation, visible, cache, slots):
        batch, length, width = x.shape
        split = (width, width + self.kv_heads * self.head_width)
        query, key, value = jnp.split(_apply(self.query_key_value, x), split, axis=-1)
        query = query.reshape(batch, length, self.kv_heads, -1, self.head_width)
        key, value = (a.reshape(batch, length, self.kv_heads, -1) for a in (key, value))
        query, key = _rotate(query, rotation), _rotate(key, rotation)
        # Heads before slots, as the products want them: a cache in another order would be turned as
        # a whole for every token.
        if cache is None:
            key, value = (jnp.moveaxis(a, 2, 1) for a in (key, value))
        else:
            row = jnp.arange(batch)[:, None]
            key, value = (
                old.at[row, :, slots].set(new, unique_indices=True, indices_are_sorted=True)
                for old, new in zip(cache, (key, value), strict=True)
            )
        scores = jnp.einsum("bqkgd,bksd->bkgqs", query, key, preferred_element_type=jnp.float32)
        scores = jnp.where(visible[:, None, None], scores * self.head_width**-0.5, -1e30)
        weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
        mixed = jnp.einsum("bkgqs,bksd->bkgqd", weights, value)
        mixed = jnp.moveaxis(mixed, 3, 1).reshape(x.shape)
        return _apply(self.attention_out, mixed), (key, value)


class _RMSNorm(nnx.Module):
    """x / rms(x) * scale, in float32."""

    def __init__(self, width: int):
        self.scale = nnx.Param(jnp.ones(width))

    def __call__(self, x: Array) -> Array:
        wide = x.astype(jnp.float32)
        rms = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + 1e-6)
        return (wide * rms * jnp.expand_dims(self.scale[...], tuple(range(x.ndim - 1)))).astype(
            x.dtype
        )


class _ValueHead(nnx.Module):
    """One float32 number a state; starts at 0, the value of knowing nothing."""

    def __init__(self, architecture: Architecture, *, rngs: nnx.Rngs):
        self.weight = _matrix(rngs, architecture.width, 1, scale=0.0)
        self.bias = nnx.Param(jnp.zeros(()))

    def __call__(self, hidden: Array) -> Array:
        return (hidden.astype(jnp.float32) @ self.weight[...])[..., 0] + self.bias[...]


def _matrix(rngs: nnx.Rngs, rows: int, columns: int, scale: float | None = None) -> nnx.Param:
    """Normal entries, by default of variance 1 / rows."""
    scale = rows**-0.5 if scale is None else scale
    return nnx.Param(scale * jax.random.normal(rngs.params(), (rows, columns)))


def _apply(matrix: nnx.Param, x: Array) -> Array:
    return x @ matrix[...].astype(x.dtype)


def _rotations(count: int, head_width: int) -> tuple[Array, Array]:
    """cos and sin [count, head_width / 2] of the rotary angles (Su et al., 2021, 2104.09864).

    Constants: in a program they would be computed anew in each layer and each pass over it.
    """
    frequency = 10_000.0 ** (-np.arange(0, head_width, 2) / head_width)
    angle = np.arange(count)[:, None] * frequency
    return jnp.asarray(np.cos(angle), jnp.float32), jnp.asarray(np.sin(angle), jnp.float32)


def _rotate(x: Array, rotation: tuple[Array, Array]) -> Array:
    """Rotate the two halves of the last axis of [B, S, ..., head_width]."""
    between = tuple(range(2, x.ndim - 1))
    cos, sin = (jnp.expand_dims(a, between).astype(x.dtype) for a in rotation)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _check(architecture: Architecture) -> None:
    width, heads, kv_heads = architecture.width, architecture.heads, architecture.kv_heads
    if min(width, architecture.layers, heads, kv_heads) < 1:
        raise InputError(f"layers={architecture.layers}, {width=}, {heads=}, {kv_heads=}: all >= 1")
    for field, kinds in (("value_head", get_args(ValueHead)), ("dtype", get_args(Dtype))):
        if getattr(architecture, field) not in kinds:
            raise InputError(f"{field}={getattr(architecture, field)!r} is none of {kinds}")
    if width % heads or (width // heads) % 2:
        raise InputError(f"{width=} must be an even multiple of {heads=}")
    if heads % kv_heads:
        raise InputError(f"{heads=} must be a multiple of {kv_heads=}")
