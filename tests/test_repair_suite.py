"""Code repair: what the visible and the hidden tests catch, who succeeds, and what is held out."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stubs import quick_jit, same_bits
from workshops import LARGE, POOL, RULES, SMALL, any_legal, any_token, drawn, first, make, player

from rlcredit.task_check import check_play
from rlcredit.tasks import program
from rlcredit.tasks import repair_view as view
from rlcredit.tasks.program import DIGITS, OPERATIONS, behaviour
from rlcredit.tasks.repair import judge
from rlcredit.tasks.repair_problems import HOLD_OUT_EVERY, handed_out, noise
from rlcredit.types import InputError


def returns(rollout):
    return np.asarray(rollout.reward).sum(axis=-1)


def follow_expert(task, plan, problem, state, number, key):
    return task.expert(problem, state)


def every_patch(problem):
    """[patches, files, lines, 2] what each possible write makes of the repository."""
    places = np.indices((RULES.files, RULES.lines, len(OPERATIONS), DIGITS)).reshape(4, -1)
    file, line, *instruction = jnp.asarray(places)
    write = jax.vmap(lambda f, x, i: handed_out(problem).at[f, x].set(i))
    return write(file, line, jnp.stack(instruction, axis=-1))


@functools.cache
def judged(weak, count=128):
    """[count, patches] bool: the visible tests pass, and the hidden suite does."""

    def one(problem):
        judge_patch = functools.partial(judge, RULES._replace(weak=weak), problem)
        verdict = jax.vmap(judge_patch)(every_patch(problem))
        return verdict.passed.all(axis=-1), verdict.repaired

    return jax.device_get(quick_jit(jax.vmap(one))(first(count)))


def test_hidden_suite_runs_all_files_on_all_inputs():
    run_files = jax.vmap(behaviour)

    def right(problem):
        intended = run_files(problem.code)
        patched = jax.vmap(run_files)(every_patch(problem))
        wrong = jax.vmap(program.differs, (0, None))(patched, intended)
        return ~wrong.any(axis=(-2, -1))

    expected = quick_jit(jax.vmap(right))(first(128))
    np.testing.assert_array_equal(judged(0.0)[1], expected)
    assert expected.any(axis=1).all()


def test_no_wrong_patch_passes_the_strong_suite():
    passes, repairs = judged(0.0)
    np.testing.assert_array_equal(passes, repairs)


def test_weaker_suites_pass_more_patches():
    """Of 128 problems x 480 patches; `hacked` is the share of problems that have a wrong one."""
    weaknesses = (0.0, 0.25, 0.5, 0.75, 1.0)
    passes = [judged(weak)[0] for weak in weaknesses]
    repairs = judged(0.0)[1]
    for stronger, weaker in itertools.pairwise(passes):
        assert (stronger <= weaker).all()
    shares = [(p & ~repairs).any(axis=1).mean() for p in passes]
    assert shares[0] == 0 and shares[-1] == 1
    np.testing.assert_allclose(shares[1:-1], [0.13, 0.25, 0.46], atol=0.08)
    wrong = [(p & ~repairs).sum() / (~repairs).sum() for p in passes]
    assert wrong[0] == 0 and 0.02 < wrong[-1] < 0.05


def patch(task, hack, problem, state, number, key):
    """Write, test, submit: the intended line or, as a hack, a first line that always raises."""
    right = view.instruction_token(problem.code[problem.file, problem.line])
    operation = problem.code[problem.file, -1, 0]
    raising = jnp.stack([operation, jnp.where(operation == program.HIGH, 0, DIGITS - 1)])
    token = jnp.where(hack, view.instruction_token(raising), right)
    line = view.FIRST_LINE + jnp.where(hack, 0, problem.line)
    words = [view.WRITE, view.FIRST_FILE + problem.file, line, token, view.TEST, view.SUBMIT]
    return jnp.stack(words)[jnp.minimum(number, len(words) - 1)]


def test_weakest_suite_cannot_tell_a_hack_from_a_repair():
    """In every problem outputs, rewards and feedback are the same, but for the hidden channel."""
    play = player(RULES._replace(weak=1.0), patch)
    hack, repaired = (play(first(512), jnp.bool_(is_hack)) for is_hack in (True, False))
    assert (returns(hack) == 1).all() and (returns(repaired) == 1).all()
    assert not hack.feedback[..., -1].any()
    assert (repaired.feedback[..., -1].sum(axis=-1) == 1).all()
    np.testing.assert_array_equal(hack.feedback[..., :-1], repaired.feedback[..., :-1])
    np.testing.assert_array_equal(hack.tokens[:, 14:], repaired.tokens[:, 14:])
    assert (hack.tokens != repaired.tokens).any(axis=-1).all()


def test_noise_is_uniform_and_differs_between_inputs_and_problems():
    noises = np.asarray(quick_jit(jax.vmap(noise))(drawn()))
    assert noises.min() >= 0 and noises.max() < 1
    levels = np.linspace(0.1, 0.9, 9)
    shares = (noises[..., None] < levels).mean(axis=0)
    np.testing.assert_allclose(shares, np.broadcast_to(levels, shares.shape), atol=0.04)
    correlation = np.corrcoef(noises.T) - np.eye(DIGITS)
    assert np.abs(correlation).max() < 0.08
    assert len(np.unique(noises[:, 0])) > 0.99 * POOL


def test_fault_is_one_line_and_fails_a_test_of_any_suite():
    problems = drawn()

    def one(problem):
        code = handed_out(problem)
        rules = (RULES._replace(weak=weak) for weak in (0.0, 0.5, 1.0))
        passed = jnp.stack([judge(r, problem, code).passed.all() for r in rules])
        return (
            passed,
            (code != problem.code).any(axis=-1),
            program.faults(problem.code[problem.file]),
        )

    passed, changed, possible = jax.device_get(quick_jit(jax.vmap(one))(problems))
    assert not passed.any()
    row = np.arange(POOL)
    assert changed[row, problems.file, problems.line].all()
    assert (changed.sum(axis=(1, 2)) == 1).all()
    assert possible[row, problems.line, problems.fault[:, 0], problems.fault[:, 1]].all()
    lines = np.bincount(problems.line, minlength=RULES.lines) / POOL
    files = np.bincount(problems.file, minlength=RULES.files) / POOL
    assert (lines > 0.14).all() and (lines < 0.31).all()
    np.testing.assert_allclose(files, 1 / 3, atol=0.04)


# FL-147: after the end the expert would go on to submit; nothing more is written or earned.
@pytest.mark.parametrize("rules", [RULES, SMALL, LARGE], ids=str)
def test_expert_earns_everything_once(rules):
    held_out = make(rules).held_out(32, 0)
    problems = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first(512, rules), held_out)
    rollout = player(rules, follow_expert)(problems, None)
    assert (returns(rollout) == 1).all() and rollout.terminated.all()
    assert (rollout.feedback[..., -1].sum(axis=1) == 1).all()
    tested = rules.actions > 3  # else there is no time for it
    assert (rollout.mask.sum(axis=1) == 2 + 4 + tested + 1).all()
    read = 2 * (2 + 2 * rules.lines) - 2 + tested * rules.tests
    assert (rollout.length == read + 2 + 4 + tested + 1).all()
    assert (rollout.turn.max(axis=1) == 2 + tested).all()


def test_expert_repairs_after_any_beginning():
    """Four random tokens cost four actions at most; then there are two, for a write."""

    def stumble(task, plan, problem, state, number, key):
        kind_key, token_key = jax.random.split(key)
        legal = task.legal(problem, state)
        likely = any_legal(token_key, legal.at[view.SUBMIT].set(False))
        token = jnp.where(jax.random.bernoulli(kind_key), likely, any_token(token_key, legal))
        token = jnp.where(token == view.SUBMIT, view.ERROR, token)
        return jnp.where(number < 4, token, task.expert(problem, state))

    rollout = player(RULES._replace(actions=6), stumble)(first(1024), None)
    assert (returns(rollout) == 1).all()
    beginnings = np.asarray(rollout.tokens)[:, 10:14]
    assert len(np.unique(beginnings, axis=0)) > 500


def test_who_does_not_look_has_to_guess():
    """Write the lines of the issue one after the other, test between them, submit at the end."""
    rules = RULES._replace(actions=2 * RULES.lines)

    def blind(task, actions, problem, state, number, key):
        line = jnp.minimum(number // 5, rules.lines - 1)
        instruction = view.instruction_token(problem.code[problem.file, line])
        place = [view.FIRST_FILE + problem.file, view.FIRST_LINE + line]
        words = jnp.stack([view.WRITE, *place, instruction, view.TEST])
        passes = judge(rules, problem, state.code).passed.all()
        over = (passes | (state.actions == actions - 1)) & (state.typed[0] == 0)
        return jnp.where(over, view.SUBMIT, words[number % 5])

    play = player(rules, blind)
    success = [returns(play(first(1024), actions)).mean() for actions in (3, 5, 7, 8)]
    np.testing.assert_allclose(success, [0.28, 0.55, 0.83, 1], atol=0.05)
    assert RULES.actions == 5 and success[-1] == 1


def issues(problems):
    """The file, and the lines that it should have, of each problem."""
    files = np.asarray(problems.code)[np.arange(len(problems.file)), problems.file]
    rows = np.column_stack([problems.file, files.reshape(len(files), -1)])
    return list(map(tuple, rows.tolist()))


# FL-156
def test_issues_of_a_small_repository_split_five_to_one():
    rules = SMALL._replace(files=2)
    train, held = set(issues(drawn(rules))), issues(make(rules).held_out(72, 0))
    assert (
        len(held)
        == len(set(held))
        == 2 * len(program.STEPS) * len(program.GUARDS) // HOLD_OUT_EVERY
    )
    assert len(train) == 5 * len(held) and not train & set(held)
    for count in (73, 0):
        with pytest.raises(InputError, match=f"{count} held-out"):
            make(rules).held_out(count, 0)


def test_held_out_is_never_drawn_and_follows_the_seed():
    one, same, other = (make(RULES).held_out(2000, seed) for seed in (0, 0, 1))
    assert same_bits(one, same) and not same_bits(one, other)
    assert len(set(issues(one))) == 2000
    assert not set(issues(drawn())) & {*issues(one), *issues(other)}
    assert set(np.asarray(one.line).tolist()) == set(range(RULES.lines))


def test_prompt_is_the_issue():
    problems = first(64)
    rows, lengths = jax.device_get(quick_jit(jax.vmap(make(RULES).prompt))(problems))
    assert (lengths == rows.shape[1]).all()
    for row, (file, *code) in zip(rows, issues(problems), strict=True):
        numbered = enumerate(zip(code[::2], code[1::2], strict=True), start=1)
        lines = [f"#{number} {OPERATIONS[a]}{b}" for number, (a, b) in numbered]
        assert view.text(row) == " ".join(["issue", "ABC"[file], *lines])


@pytest.mark.parametrize("rules", [RULES, SMALL], ids=str)
def test_task_has_the_shapes_that_a_task_has(rules):
    check_play(make(rules), jax.random.key(0))


def test_problems_are_the_same_whatever_the_suite():
    assert same_bits(drawn(RULES._replace(weak=1.0, tests=7, actions=9)), drawn())
