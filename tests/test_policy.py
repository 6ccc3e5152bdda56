"""The network says the same of a prefix however it is read, and sees nothing but the prefix."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import VOCABULARY, network, parameters, quick_jit, same_bits

from rlcredit.policy import Architecture, transformer
from rlcredit.types import InputError

LENGTH, DECODED = 8, 3
SLOTS = LENGTH + DECODED
ATOL = {"float32": 1e-5, "bfloat16": 5e-2}
rows = np.random.default_rng(0).integers(0, len(VOCABULARY), (8, SLOTS)).astype(np.int32)


@functools.cache
def compiled(dtype="float32", **changes):
    """(params, forward, extend) of a network of two layers."""
    policy, params = network(layers=2, heads=4, kv_heads=2, dtype=dtype, **changes)
    jit = jax.jit if dtype == "float32" else quick_jit
    return policy, params, jit(policy.forward), jit(policy.extend)


def assert_close(got, wanted, dtype):
    np.testing.assert_allclose(
        np.asarray(got, np.float32), np.asarray(wanted, np.float32), atol=ATOL[dtype], rtol=0
    )


def read_in_chunks(dtype, tokens, chunks):
    """Hidden states of `tokens` read through the cache, and the cache."""
    policy, params, _, extend = compiled(dtype)
    cache, slot, hidden = policy.init_cache(len(tokens), SLOTS), 0, []
    for size in chunks:
        chunk = tokens[:, slot : slot + size]
        states, cache = extend(params, cache, chunk, np.full(len(tokens), slot, np.int32))
        hidden.append(states)
        slot += size
    return jnp.concatenate(hidden, axis=1), cache


@pytest.mark.parametrize("dtype, batch", [("float32", 1), ("float32", 8), ("bfloat16", 8)])
def test_reading_in_pieces_equals_one_forward_pass(dtype, batch):  # FL-069, FL-072
    _, params, forward, _ = compiled(dtype)
    tokens = rows[:batch]
    wanted = forward(params, tokens)[0]
    assert wanted.dtype == dtype and jnp.std(wanted.astype(jnp.float32)) > 0.3
    caches = []
    for chunks in ((LENGTH,) + (1,) * DECODED, (4, 4) + (1,) * DECODED, (1,) * SLOTS):
        hidden, cache = read_in_chunks(dtype, tokens, chunks)
        assert_close(hidden, wanted, dtype)
        caches.append(cache)
    for cache in caches[1:]:
        for a, b in zip(jax.tree.leaves(cache), jax.tree.leaves(caches[0]), strict=True):
            assert_close(a, b, dtype)


@pytest.mark.parametrize("dtype", list(ATOL))
def test_rows_go_on_from_slots_of_their_own(dtype):  # FL-063, FL-069
    """Prompts of 1 to 8 tokens, read at once without a cache, then three tokens one by one; what
    the prompt's cache holds beyond the prompt is never seen.
    """
    policy, params, forward, extend = compiled(dtype)
    lengths = np.asarray([1, 4, LENGTH, 2, 3, 5, 6, 7], np.int32)
    prompts = np.where(np.arange(LENGTH) < lengths[:, None], rows[:, :LENGTH], 9)
    wanted = forward(params, rows)[0]
    hidden, read = extend(params, None, prompts, np.zeros(1, np.int32))
    cache = jax.tree.map(
        lambda empty, filled: empty.at[:, :, :LENGTH].set(filled), policy.init_cache(8, SLOTS), read
    )
    every = np.arange(8)
    assert_close(hidden[every, lengths - 1], wanted[every, lengths - 1], dtype)
    for slot in (lengths, lengths + 1, lengths + 2):
        hidden, cache = extend(params, cache, rows[every, slot][:, None], slot)
        assert_close(hidden[:, 0], wanted[every, slot], dtype)


def test_nothing_is_written_beyond_the_last_slot():  # FL-070
    policy, params, _, extend = compiled()
    cache = policy.init_cache(8, SLOTS)
    _, after = extend(params, cache, rows[:, :1], np.full(8, SLOTS, np.int32))
    assert same_bits(after, cache)


@pytest.mark.parametrize("position", [0, 5, SLOTS - 1])
def test_a_token_changes_nothing_before_it(position):
    _, params, forward, _ = compiled()
    changed = rows.copy()
    changed[:, position] = (changed[:, position] + 1) % len(VOCABULARY)
    before, after = (np.asarray(forward(params, tokens)[0]) for tokens in (rows, changed))
    assert same_bits(before[:, :position], after[:, :position])
    assert (np.abs(before - after).max(axis=-1)[:, position:] > 0).all()


def test_right_padding_changes_nothing():
    _, params, forward, _ = compiled()
    wanted = forward(params, rows)[0][:1, :5]
    np.testing.assert_allclose(forward(params, rows[:1, :5])[0], wanted, atol=1e-6, rtol=0)


def test_order_of_tokens_matters():
    """One layer without positions would be blind to the order of the tokens before the last."""
    policy, params = network(layers=1)
    swapped = rows.copy()
    swapped[:, [0, 1]] = rows[:, [1, 0]]
    differ = rows[:, 0] != rows[:, 1]
    last, other = (quick_jit(policy.forward)(params, each)[0][:, -1] for each in (rows, swapped))
    assert (jnp.abs(last - other).max(axis=-1)[differ] > 1e-3).all() and differ.any()


def test_tied_head_is_the_embedding():
    policy, params = network(tied=True)
    assert set(params["policy"]) == {"embedding", "blocks", "norm"}
    assert same_bits(policy.head(params), params["policy"]["embedding"].T)
    policy, params = network(tied=False)
    assert same_bits(policy.head(params), params["policy"]["head"])
    assert policy.head(params).shape == (16, len(VOCABULARY))


@pytest.mark.parametrize("kind", ["none", "shared", "separate"])
@pytest.mark.parametrize("dtype", list(ATOL))
def test_parameters_are_plain_dicts_of_float32(kind, dtype):
    policy, params = network(value_head=kind, dtype=dtype)
    assert policy.has_value == (kind != "none")
    assert ("value_head" in params, "critic" in params) == (kind != "none", kind == "separate")

    def check(tree):
        if type(tree) is dict:
            return all(check(child) for child in tree.values())
        return tree.dtype == jnp.float32

    assert check(jax.eval_shape(policy.init, jax.random.key(0))) and check(params)


@pytest.fixture(scope="module")
def initial():
    policy = transformer(Architecture(10, 16, 1, 2, 1, 2.0, value_head="shared"))
    return policy, quick_jit(policy.init)


def test_init_follows_its_key_and_starts_nearly_uniform_without_value(initial):
    policy, init = initial
    params, same, other = (init(jax.random.key(seed)) for seed in (0, 0, 1))
    assert same_bits(params, same)
    assert not jnp.array_equal(policy.head(params), policy.head(other))
    hidden, value = jax.jit(policy.forward)(params, rows)
    probability = jax.nn.softmax(hidden @ policy.head(params))
    assert jnp.abs(probability - 0.1).max() < 0.1
    assert value.shape == rows.shape and not value.any()


@pytest.mark.parametrize("kind", ["shared", "separate"])
def test_gradients_between_policy_and_critic(kind):
    policy, params = network(value_head=kind)

    def both(params):
        hidden, value = policy.forward(params, rows)
        said = jax.nn.log_softmax(hidden @ policy.head(params))[..., 0].sum()
        return said, value.sum()

    of_policy, of_value = quick_jit(jax.jacrev(both))(params)

    def size(gradient, *names):
        leaves = jax.tree.leaves([gradient[name] for name in names if name in gradient])
        return sum(float(jnp.abs(leaf).sum()) for leaf in leaves)

    assert size(of_policy, "policy") > 0 == size(of_policy, "critic", "value_head")
    assert (size(of_value, "policy") > 0) == (kind == "shared")
    assert (size(of_value, "critic") > 0) == (kind == "separate")
    assert size(of_value, "value_head") > 0


def test_grouped_queries_equal_full_attention_with_repeated_keys_and_values():
    _, grouped, forward, _ = compiled()
    full_policy, full = network(layers=2, heads=4, kv_heads=4)
    full = grouped | {"policy": grouped["policy"] | {"blocks": {}}}
    for layer, block in grouped["policy"]["blocks"].items():
        query, *others = jnp.split(block["query_key_value"], [16, 24], axis=1)
        repeated = [jnp.repeat(a.reshape(16, 2, 4), 2, axis=1).reshape(16, 16) for a in others]
        joined = jnp.concatenate([query, *repeated], axis=1)
        full["policy"]["blocks"][layer] = block | {"query_key_value": joined}
    wanted, _ = jax.jit(full_policy.forward)(full, rows)
    np.testing.assert_allclose(forward(grouped, rows)[0], wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "sizes, named",
    [
        ({"width": 18, "heads": 4}, "width=18"),
        ({"width": 12, "heads": 4}, "width=12"),  # 3 numbers a head cannot be rotated in pairs
        ({"heads": 4, "kv_heads": 3}, "kv_heads=3"),
    ],
)
def test_sizes_that_do_not_divide_are_refused_by_name(sizes, named):
    with pytest.raises(InputError, match=named):
        network(**sizes)


def test_stub_parameters_are_distinct():
    policy, params = network()
    assert not same_bits(params, parameters(policy, 1))
