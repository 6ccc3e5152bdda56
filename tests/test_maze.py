"""The maze: its rules are those of a slow game on a picture, and every problem can be solved."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from maze_reference import Board, problem_of
from stubs import quick_jit

from rlcredit import episode
from rlcredit.tasks import maze_view as view
from rlcredit.tasks.maze import draw_map, maze
from rlcredit.tasks.maze_problems import draw_problem
from rlcredit.types import InputError

DIALS = {
    "plain": {},
    "door": {"size": 3, "door": True, "traps": 0.6, "think": 2, "limit": 30},
    "aliased": {"size": 3, "aliased": True, "door": True, "braid": 0.6},
    "warmer": {"reward": "warmer", "traps": 0.5, "braid": 0.3, "limit": 9},
    "plan": {"size": 3, "regime": "plan", "reward": "warmer", "door": True, "traps": 1, "think": 1},
}
COUNT = 48
every_dial = pytest.mark.parametrize("dial", DIALS)
DRAWING = """
+---+---+---+
| S | K | E |
+   +   +   +
|           |
+   +---+---+
|         x |
+---+---+---+
""".strip()

ROOM = """
+---+---+---+
| E         |
+   +   +   +
|     S     |
+   +   +   +
|           |
+---+---+---+
""".strip()


def settings_of(dial):
    settings = {"size": 4, "regime": "walk", "reward": "ding", "think": 0, "limit": 0}
    settings |= DIALS[dial]
    return settings | {"limit": settings["limit"] or settings["size"] ** 2}


@functools.cache
def task_of(dial):
    return maze(**DIALS[dial])


@functools.cache
def drawn(dial, count=COUNT):
    return quick_jit(jax.vmap(task_of(dial).draw))(jax.random.split(jax.random.key(3), count))


def each(problems):
    """The problems of a batch, one by one."""
    problems = jax.tree.map(np.asarray, problems)
    for i in range(len(problems.exit_cell)):
        yield jax.tree.map(lambda leaf, i=i: leaf[i], problems)


def run(task, problems, tokens):
    """What each of the [B, T] tokens did, as if no episode ended; leaves are numpy arrays."""

    def one(problem, tokens, key):
        def advance(state, token):
            after = task.step(problem, state, token, key)
            return after.state, after

        return jax.lax.scan(advance, task.start(problem), tokens)[1]

    keys = jax.random.split(jax.random.key(0), len(tokens))
    return jax.tree.map(np.asarray, quick_jit(jax.vmap(one))(problems, tokens, keys))


def random_tokens(vocabulary, shape):
    """Seven of ten are moves, two are thoughts and one may be any token."""
    rng = np.random.default_rng(0)
    kind = rng.choice(3, shape, p=[0.7, 0.2, 0.1])
    low = np.choose(kind, [view.FIRST_MOVE, view.FIRST_THOUGHT, 0])
    high = np.choose(kind, [view.FIRST_THOUGHT, view.FIRST_SIDES, vocabulary])
    return rng.integers(low, high, dtype=np.int32)


@every_dial
def test_rules_are_those_of_the_game_on_the_picture(dial):
    task, settings = task_of(dial), settings_of(dial)
    tokens = random_tokens(len(task.vocabulary), (COUNT, 40))
    outcome = run(task, drawn(dial), tokens)
    limits = {"think": settings["think"], "limit": settings["limit"]}
    ends = set()
    for i, problem in enumerate(each(drawn(dial))):
        board = Board(draw_map(problem))
        names = [task.vocabulary[token] for token in tokens[i]]
        game = list(board.episode(names, warmer=settings["reward"] == "warmer", **limits))
        length = len(game)
        happened = jax.tree.map(lambda leaf, i=i, n=length: leaf[i, :n].tolist(), outcome)
        columns = map(list, zip(*game, strict=True))
        places, has_key, thoughts, moves, reward, terminated, truncated = columns
        cells = [board.places.index(place) for place in places]
        assert happened.state == (cells, has_key, thoughts, moves)
        assert happened.reward == pytest.approx(reward, abs=1e-6)
        assert (happened.terminated, happened.truncated) == (terminated, truncated)
        over = [a or b for a, b in zip(terminated, truncated, strict=True)]
        moved = [count == 0 for count in thoughts]
        assert happened.step_ended == moved
        assert happened.turn_ended == (moved if settings["regime"] == "walk" else over)
        if settings["regime"] == "walk":
            seen = [
                board.observation(place, key, settings.get("aliased")) if move else []
                for place, key, move in zip(places, has_key, moved, strict=True)
            ]
            heard = [[task.vocabulary[token] for token in row] for row in happened.observation]
            assert heard == [row + ["_"] * (len(heard[0]) - len(row)) for row in seen]
        ends.add((terminated[-1], truncated[-1]))
    assert {(True, False), (False, True)} <= ends


@pytest.mark.parametrize(
    "settings, line, places, rewards, truncated",
    [
        ({}, ">E >E >S", [(0, 0), (0, 0), (1, 0)], [0, 0, 0], [0, 0, 0]),
        ({"limit": 3}, ">E >N [] >N", [(0, 0)] * 4, [0] * 4, [0, 0, 1, 1]),
        ({"limit": 3}, ">S >S >S", [(1, 0), (2, 0), (2, 0)], [0, 0, 0], [0, 0, 1]),
        (
            {},  # closed, to the key, open
            ">S >E >E >N >W >N >S >E >N",
            [(1, 0), (1, 1), (1, 2), (1, 2), (1, 1), (0, 1), (1, 1), (1, 2), (0, 2)],
            [0] * 8 + [1],
            [0] * 9,
        ),
        ({}, ">S >S >E >E >W >N", [(1, 0), (2, 0), (2, 1), *[(2, 2)] * 3], [0] * 6, [0] * 6),
        ({"think": 1, "limit": 2}, "hm if so >S", [*[(0, 0)] * 3, (1, 0)], [0] * 4, [0, 0, 0, 1]),
    ],
    ids=["FL-150", "FL-149-FL-144", "last-move", "door", "trap", "too-many-thoughts"],
)
def test_episodes_by_hand(settings, line, places, rewards, truncated):
    task = maze(size=3, **{"limit": 9, **settings})
    tokens = np.asarray([[task.vocabulary.index(name) for name in line.split()]], np.int32)
    problem = jax.tree.map(lambda leaf: leaf[None], problem_of(DRAWING))
    outcome = jax.tree.map(lambda leaf: leaf[0], run(task, problem, tokens))
    assert [divmod(cell, 3) for cell in outcome.state.cell.tolist()] == places
    assert outcome.reward.tolist() == rewards and outcome.truncated.tolist() == truncated
    assert outcome.terminated.tolist() == rewards
    thoughts = [name in view.THOUGHTS for name in line.split()]
    if not any(thoughts):
        assert outcome.state.moves.tolist() == list(range(1, len(places) + 1))


def test_a_slip_goes_in_any_other_direction():
    count, task = 4096, maze(size=3, slip=0.3)
    problem = problem_of(ROOM)
    start = task.start(problem)
    step = quick_jit(jax.vmap(task.step, (None, None, 0, 0)))
    keys = jax.random.split(jax.random.key(0), count)
    east = step(problem, start, jnp.full(count, view.FIRST_MOVE + 1), keys)
    shares = np.bincount(np.asarray(east.state.cell), minlength=9) / count
    assert shares[[1, 3, 5, 7]].tolist() == pytest.approx([0.1, 0.1, 0.7, 0.1], abs=0.02)
    waste = step(problem, start, jnp.full(count, view.START), keys).state
    assert (waste.cell == 4).all() and (waste.moves == 1).all()


def distance(board):
    return board.distance(board.start, board.key is None)


@every_dial
def test_the_expert_takes_a_shortest_path_to_the_full_reward(dial):
    task, problems = task_of(dial), drawn(dial)
    keys = jax.random.split(jax.random.key(0), COUNT)

    def choose(problem, state, number, key):
        return task.expert(problem, state)

    rollout = quick_jit(lambda: episode.play(task, problems, keys, choose))()
    boards = [Board(draw_map(problem)) for problem in each(problems)]
    assert rollout.terminated.all()
    assert rollout.mask.sum(axis=2)[:, 0].tolist() == [distance(board) for board in boards]
    earned = rollout.reward.sum(axis=2)[:, 0].tolist()
    warmer = settings_of(dial)["reward"] == "warmer"
    expected = [1 - warmer * board.potential(board.start, not board.key) for board in boards]
    assert earned == pytest.approx(expected, abs=1e-6)


def test_the_expert_takes_the_first_direction_among_equals():
    """From the middle of a maze without walls to the corner; north and west are as good."""
    problem = problem_of(ROOM)
    task = maze(size=3)
    assert task.vocabulary[int(task.expert(problem, task.start(problem)))] == ">N"


@pytest.mark.parametrize("size", [3, 4, 5, 6, 8, 10], ids=lambda size: f"FL-140-{size}")
def test_every_maze_can_be_solved_in_the_limit(size):
    task = maze(size=size)
    keys = jax.random.split(jax.random.key(size), 2000)
    problems = jax.tree.map(np.asarray, quick_jit(jax.vmap(task.draw))(keys))
    start, goal = problems.start_cell, problems.exit_cell
    assert (start != goal).all()
    reached = np.eye(size**2, dtype=bool)[start]
    moves = np.zeros(2000, int)
    for _ in range(size**2):  # flood from the start; openings decide, not the stored distances
        moves += ~reached[np.arange(2000), goal]
        flow = reached[..., None] & problems.openings
        for direction, shift in enumerate((-size, 1, size, -1)):
            reached = reached | np.roll(flow[..., direction], shift, axis=1)
    assert moves.min() >= 1 and moves.max() <= size**2 - 1
    assert (moves == problems.to_exit[np.arange(2000), start]).all()
    assert np.bincount(moves).max() <= 0.6 * 2000
    for cells in (start, goal):
        assert np.bincount(cells, minlength=size**2).min() > 0.3 * 2000 / size**2


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("door, limit", [(False, 2), (True, 3), (True, 6)])
def test_no_problem_needs_more_than_the_limit(door, limit, held_out):
    settings = {"size": 3, "braid": 0.2, "traps": 0.5, "door": door, "limit": limit}
    draw = functools.partial(draw_problem, held_out=held_out, **settings)
    problems = quick_jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), 128))
    moves = [distance(Board(draw_map(problem))) for problem in each(problems)]
    assert min(moves) == 1 + door and max(moves) == limit


@pytest.mark.parametrize("regime", ["walk", "plan"])
def test_the_limit_comes_before_the_end_of_the_row(regime):
    """Even where as much as possible is thought before every move."""
    task = maze(size=3, regime=regime, think=2, limit=5, door=True)
    problems = quick_jit(jax.vmap(task.draw))(jax.random.split(jax.random.key(0), 8))

    def choose(problem, state, number, key):
        thought = state.thoughts < 2
        return jnp.where(thought, view.FIRST_THOUGHT, 0)

    rollout = quick_jit(
        lambda: episode.play(task, problems, jax.random.split(jax.random.key(0), 8), choose)
    )()
    assert rollout.truncated.all() and (rollout.mask.sum(axis=2) == 5 * 3).all()
    assert (rollout.length == task.prompt_capacity + task.horizon).all()
    assert task.horizon == 5 * (3 + (4 if regime == "walk" else 0))


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"size": 2}, "size=2"),
        ({"size": 16}, "size=16"),
        ({"regime": "run"}, "regime='run'"),
        ({"reward": "cold"}, "reward='cold'"),
        ({"regime": "plan", "aliased": True}, "aliased=True"),
        ({"braid": 1.5}, "braid=1.5"),
        ({"slip": float("nan")}, "slip=nan"),
        ({"traps": -0.1}, "traps=-0.1"),
        ({"think": -1}, "think=-1"),
        ({"limit": 1}, "limit=1"),
        ({"limit": 2, "door": True}, "limit=2"),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(settings, named):
    with pytest.raises(InputError, match=named):
        maze(**settings)
