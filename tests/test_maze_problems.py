"""Maze problems: training and held-out ones are apart; what is drawn, shown and fingerprinted."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from maze_reference import Board, problem_of
from stubs import quick_jit

from rlcredit.tasks import grid
from rlcredit.tasks.maze import State, draw_map, maze
from rlcredit.tasks.maze_problems import HOLD_OUT_EVERY, distinct, draw_problem
from rlcredit.types import InputError

PLAIN = {"braid": 0.0, "door": False, "traps": 0.0}
FULL = {"braid": 0.4, "door": True, "traps": 0.7}
DRAWING = """
+---+---+---+
| S | K | E |
+   +   +   +
|           |
+   +---+---+
|         x |
+---+---+---+
""".strip()


def drawer(size, settings, held_out=False):
    """keys [M] -> problems, leaves [M, ...]; `maze` makes the same with a slower compilation."""
    draw = functools.partial(draw_problem, size=size, limit=size**2, held_out=held_out, **settings)
    return quick_jit(jax.vmap(draw))


@functools.cache
def trained(size, full):
    keys = jax.random.split(jax.random.key(1), 2**16 if (size, full) == (3, False) else 2**14)
    return jax.tree.map(np.asarray, drawer(size, FULL if full else PLAIN)(keys))


@functools.cache
def held_out(size, full):
    return distinct(drawer(size, FULL if full else PLAIN, held_out=True), 2500, 0)


def identities(problems):
    """layout, exit and start of each problem; a trap does not change the layout it was made in."""
    layouts = np.asarray(problems.openings | jax.vmap(grid.mirrored)(problems.openings))
    cells = (np.asarray(cell).tolist() for cell in (problems.exit_cell, problems.start_cell))
    return list(zip((layout.tobytes() for layout in layouts), *cells, strict=True))


@pytest.mark.parametrize("full", [False, True], ids=["plain", "full"])
@pytest.mark.parametrize("size", [3, pytest.param(5, id="FL-156-5")])
def test_training_and_held_out_problems_share_no_layout_exit_and_start(size, full):
    assert not set(identities(held_out(size, full))) & set(identities(trained(size, full)))


def test_one_residue_class_of_the_starts_is_held_out():
    """Of the eight starts that fit: the numbers r and r + 5, or r alone, and all others train."""
    sides = {}
    for sign, problems in ((1, trained(3, False)), (-1, held_out(3, False))):
        for layout, goal, start in identities(problems):
            number = start - (start > goal)
            sides.setdefault((layout, goal), {})[number] = sign
    assert len(sides) == 192 * 9  # Kirchhoff's number of layouts, and each exit in each of them
    complete = [numbers for numbers in sides.values() if len(numbers) == 8]
    assert len(complete) > 1000
    for numbers in complete:
        out = sorted(number for number, sign in numbers.items() if sign < 0)
        assert out == [number for number in range(8) if number % HOLD_OUT_EVERY == out[0]]
    residues = [min(n for n, sign in numbers.items() if sign < 0) for numbers in complete]
    assert np.bincount(residues).min() > 0.1 * len(residues)


def test_asking_for_more_than_exist_is_refused():
    ask = functools.partial(distinct, drawer(3, PLAIN, held_out=True))
    with pytest.raises(InputError, match="6000 held-out problems") as refusal:
        ask(6_000, 0)
    exist = int(re.search(r"have (\d+)", str(refusal.value))[1])
    assert 192 * 9 <= exist <= 192 * 9 * 2  # one or two starts for each layout and exit
    assert len(set(identities(ask(exist, 1)))) == exist
    with pytest.raises(InputError, match=f"{exist + 1} held-out problems"):
        ask(exist + 1, 1)
    with pytest.raises(InputError, match="0 held-out problems"):
        ask(0, 0)


def test_held_out_problems_follow_the_seed_and_differ():
    task = maze(size=3, **FULL)
    one, same, other = (task.held_out(100, seed) for seed in (0, 0, 1))
    rows = [np.concatenate([leaf.reshape(100, -1) for leaf in ps], axis=1) for ps in (one, other)]
    jax.tree.map(np.testing.assert_array_equal, one, same)
    assert len(np.unique(rows[0], axis=0)) == 100 and (rows[0] != rows[1]).any()
    assert not set(identities(one)) & set(identities(trained(3, True)))


def test_start_exit_and_key_are_apart_and_anywhere():
    problems = trained(3, True)
    cells = np.stack([problems.start_cell, problems.exit_cell, problems.key_cell])
    assert all((cells[i] != cells[j]).all() for i, j in ((0, 1), (0, 2), (1, 2)))
    assert min(np.bincount(row, minlength=9).min() for row in cells) > 2**14 / 9 / 2
    traps = ~problems.openings.any(axis=2)
    assert not any(traps[np.arange(2**14), row].any() for row in cells) and traps.any()


def test_the_key_is_uniform_over_the_cells_where_the_limit_suffices():
    """Those that can be reached while the exit is closed, the way back included."""
    keys = jax.random.split(jax.random.key(2), 1500)
    problems = jax.tree.map(np.asarray, drawer(3, PLAIN | {"door": True})(keys))
    ranks = {}
    for i, key_cell in enumerate(problems.key_cell):
        board, fits = Board(draw_map(jax.tree.map(lambda leaf, i=i: leaf[i], problems))), []
        for place in set(board.places) - {board.start, board.exit}:
            board.key = place
            if 0 < board.distance(board.start, False) <= 9:
                fits.append(board.places.index(place))
        ranks.setdefault(len(fits), []).append(sorted(fits).index(key_cell))
    for count, found in ranks.items():
        expected = len(found) / count
        assert (abs(np.bincount(found, minlength=count) - expected) < 5 * expected**0.5).all()
    assert len(ranks) > 4 and len(ranks[7]) > 100


@pytest.mark.parametrize("door", [False, True])
@pytest.mark.parametrize("shown", ["walk", "aliased", "plan"])
def test_prompts_read_as_the_picture(shown, door):
    regime = "plan" if shown == "plan" else "walk"
    task = maze(size=5, door=door, traps=0.5, regime=regime, aliased=shown == "aliased")
    problems = drawer(5, FULL | {"door": door})(jax.random.split(jax.random.key(0), 32))
    rows, lengths = quick_jit(jax.vmap(task.prompt))(problems)
    assert (lengths == task.prompt_capacity).all() and rows.dtype == jnp.int32
    for i, row in enumerate(np.asarray(rows)):
        board = Board(draw_map(jax.tree.map(lambda leaf, i=i: leaf[i], problems)))
        goals = ["exit", *board.exit] + (["key", *board.key] if door else [])
        if shown == "plan":
            parts = [*map(board.sides, board.places), "start", *board.start, *goals]
        else:
            parts = goals + board.observation(board.start, not door, shown == "aliased")
        assert [task.vocabulary[token] for token in row] == list(map(str, parts))


def test_a_row_reads_as_a_line():
    task = maze(door=True, think=1)
    names = "exit 3 1 key 0 0 0 2 [ES] no-key hm >E 0 3 [W] no-key >E 3 1 3 [] has-key >N 2 1"
    tokens = [task.vocabulary.index(name) for name in names.split()]
    line = "exit(3,1) key(0,0) at(0,2)[ES] no-key hm >E at(0,3)[W] no-key >E 3 at(1,3)[] has-key >N"
    assert task.text(np.asarray([*tokens, 0, 0])) == f"{line} 2 1"
    names = "[NE] [] start 0 1 exit 2 2 >N >W"
    tokens = [task.vocabulary.index(name) for name in names.split()]
    assert task.text(np.asarray(tokens)) == "[NE] [] start(0,1) exit(2,2) >N >W"


def test_the_vocabulary_is_small_and_starts_with_padding():
    for size in (3, 15):
        words = maze(size=size).vocabulary
        assert len(words) == len(set(words)) == 29 + size and words[0] == "_"


def test_a_picture_shows_the_problem():
    assert draw_map(problem_of(DRAWING)) == DRAWING
    seen = np.asarray(problem_of(DRAWING).openings)
    assert seen[1].tolist() == [False, False, True, False]  # K is open to the south
    assert not seen[8].any() and seen[7].tolist() == [False, True, False, True]  # into the trap


def test_different_states_have_different_fingerprints():
    problems = jax.tree.map(lambda leaf: leaf[:256], trained(3, True))
    cell, has_key, thoughts = map(np.ravel, np.meshgrid(range(9), [False, True], range(3)))
    states = State(*map(jnp.int32, (cell, has_key, thoughts, 0 * cell)))
    prints = jax.vmap(jax.vmap(maze(size=3).fingerprint, (None, 0)), (0, None))
    found = np.asarray(quick_jit(prints)(problems, states))
    goals = np.stack([problems.exit_cell, problems.key_cell], axis=1)
    mazes = np.unique(np.concatenate([problems.openings.reshape(256, -1), goals], axis=1), axis=0)
    assert len(np.unique(found)) == len(mazes) * len(cell)


def test_histories_that_end_in_one_place_share_their_fingerprint():
    task, problem = maze(size=3, door=True, think=1), problem_of(DRAWING)

    def after(line):
        state = task.start(problem)
        for name in line.split():
            token = jnp.int32(task.vocabulary.index(name))
            state = task.step(problem, state, token, jax.random.key(0)).state
        return int(task.fingerprint(problem, state))

    assert after(">S") == after(">E >S") == after(">S >S >N") == after("hm >S hm _")
    kinds = [">S", ">N", "hm", ">S hm", ">S >E", ">S >E >N >S", ">S >E >N"]
    assert len(set(map(after, kinds))) == len(kinds)
    moved = problem._replace(start_cell=jnp.int32(3))  # another start, the same maze
    assert int(task.fingerprint(moved, task.start(moved))) == after(">S")
