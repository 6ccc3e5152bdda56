"""What reports stand on: the score of every choice, and the exact gradient made of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from stubs import distance, parameters, quick_jit
from tree_reference import CASES, LEGAL, ground_of, policy_of, prepare_of, problems_of

from rlcredit.exact.objective import objective
from rlcredit.oracle import ground
from rlcredit.oracle.ground import gradients, prepare, return_variance
from rlcredit.score import score
from rlcredit.types import InputError

NAME = "slip"  # problems of two sizes, with chance and observations


@functools.cache
def arrays():
    whole = ground_of(NAME)
    rollout = whole.tree.rollout._replace(key=None)
    light = whole._replace(context=None, tree=whole.tree._replace(rollout=rollout))
    return jax.tree.map(np.asarray, light)


def test_the_gradient_is_that_of_the_objective():
    policy, params = policy_of(NAME)
    tree = ground_of(NAME).tree
    differentiate = quick_jit(jax.grad(lambda p: objective(policy, p, tree, LEGAL)))
    wanted = np.asarray(ravel_pytree(differentiate(params))[0])
    found = arrays().gradient
    assert np.linalg.norm(found - wanted) < 1e-5 * np.linalg.norm(wanted)


def test_the_scores_of_a_row_add_up_to_the_gradient_of_its_log_prob():
    policy, params = policy_of(NAME)
    here = arrays()

    @quick_jit
    def differentiate(params, tokens, legal, mask):
        def total(params):
            scored = score(policy, params, tokens[None], sampling=LEGAL, legal=legal[None])
            return jnp.sum(scored.log_prob[0] * mask)

        return ravel_pytree(jax.grad(total)(params))[0]

    rollout = here.tree.rollout
    padded = np.pad(here.scores, ((0, 0), (0, 1), (0, 0)))
    for n in range(2):
        for row in (0, int(here.tree.count[n]) - 1):
            cut = np.arange(rollout.mask.shape[2]) % 2 == row % 2  # some tokens of it
            counted = rollout.mask[n, row] & (cut | (row > 0))
            at = (rollout.tokens[n, row], rollout.legal[n, row], counted)
            wanted = np.asarray(differentiate(params, *at))
            found = padded[n, here.edge[n, row, counted]].sum(axis=0)
            np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_edges_are_numbered_once_and_stand_for_their_tokens():
    here = arrays()
    mask, edges = here.tree.rollout.mask, here.visit.shape[1]
    for n in range(2):
        used = here.edge[n][mask[n]]
        count = used.max() + 1
        assert set(used) == set(range(count)) and (here.edge[n][~mask[n]] == edges).all()
        assert not here.visit[n, count:].any() and not here.scores[n, count:].any()
        names = {}
        for row, t in np.argwhere(mask[n]):
            edge = here.edge[n, row, t]
            assert (
                names.setdefault(edge, (here.tree.edge[n, row, t], t))[0]
                == (here.tree.edge[n, row, t])
            )
            np.testing.assert_allclose(
                here.advantage[n, edge], here.truth.advantage[n, row, t], atol=1e-7
            )
        assert len(set(names.values())) == count
        probability = here.truth.probability[n]
        for edge in range(count):
            rows = (here.edge[n] == edge).any(axis=1)
            np.testing.assert_allclose(here.visit[n, edge], probability[rows].sum(), atol=1e-6)
    assert max(here.edge[n][mask[n]].max() for n in range(2)) == edges - 1


def test_scores_and_advantages_have_mean_0_at_every_prefix():
    here = arrays()
    for n in range(2):
        real = here.visit[n] > 0
        names = np.unique(here.node[n][real])
        assert names.size > 1
        for node in names:
            at = real & (here.node[n] == node)
            assert at.sum() >= 2
            share = here.visit[n, at] / here.visit[n, at].sum()
            np.testing.assert_allclose(share @ here.scores[n, at], 0, atol=1e-5)
            np.testing.assert_allclose(share @ here.advantage[n, at], 0, atol=1e-5)


def test_weights_make_gradients_and_returns_have_a_variance():
    here = arrays()
    weight = np.random.default_rng(0).normal(size=(3, *here.visit.shape)).astype(np.float32)
    wanted = [sum(weight[j, n] @ here.scores[n] for n in range(2)) / 2 for j in range(3)]
    np.testing.assert_allclose(gradients(here, jnp.asarray(weight)), wanted, atol=1e-4)
    mean = np.sum(here.truth.probability * here.truth.total, axis=1, keepdims=True)
    wanted = np.sum(here.truth.probability * (here.truth.total - mean) ** 2, axis=1)
    np.testing.assert_allclose(return_variance(here.truth), wanted, rtol=1e-5)


def test_what_is_too_large_is_refused_with_its_size(monkeypatch):
    context, problems = ground_of(NAME).context, problems_of(CASES[NAME])
    here = arrays()
    most = int(here.tree.count.max())
    monkeypatch.setattr(ground, "MOST_ROWS", most - 1)
    with pytest.raises(InputError, match=f"'maze' has {most} episodes, .* at most {most - 1}"):
        prepare(context, problems)
    monkeypatch.setattr(ground, "MOST_SCORES", here.scores.size - 1)
    count, edges, size = here.scores.shape
    message = f"{count} problems of {edges} choices under {size:,} parameters"
    with pytest.raises(InputError, match=message):
        ground._check_scores(context.params, count, edges)
    monkeypatch.setattr(ground, "MOST_SCORES", here.scores.size)
    ground._check_scores(context.params, count, edges)


def test_other_parameters_need_no_new_compilation():
    here, policy = ground_of(NAME), policy_of(NAME)[0]
    seen = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(duration)

    others = [parameters(policy, seed=seed) for seed in (7, 8)]
    prepare_of(NAME, "none")(*others[::-1])  # whatever other tests have made of the caches
    jax.monitoring.register_event_duration_secs_listener(listen)
    other = prepare_of(NAME, "none")(*others)
    jax.monitoring.unregister_event_duration_listener(listen)
    assert not seen
    np.testing.assert_array_equal(other.tree.rollout.tokens, here.tree.rollout.tokens)
    assert other.context.params is not other.context.ref_params
    assert distance(other.truth.value, here.truth.value) > 0.01
    assert distance(other.scores, here.scores) > 0.01
