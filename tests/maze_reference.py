"""A slow maze, played on its ASCII picture with rules of its own; no arrays."""

from collections import deque

import jax.numpy as jnp
import numpy as np

from rlcredit.tasks.maze_problems import make_problem

MOVES = {"N": (-1, 0), "E": (0, 1), "S": (1, 0), "W": (0, -1)}
THOUGHTS = {"hm", "so", "if"}


class Board:
    """What a picture of `maze.draw_map` says; a place is (row, column)."""

    def __init__(self, drawing):
        self.lines = drawing.splitlines()
        self.size = len(self.lines) // 2
        self.places = [(row, column) for row in range(self.size) for column in range(self.size)]
        letters = {self.letter(place): place for place in self.places}
        self.start, self.exit, self.key = (letters.get(letter) for letter in "SEK")
        # Where there is no door, the walker has the key from the start.
        keys = (False, True) if self.key else (True,)
        states = [(place, has_key) for place in self.places for has_key in keys]
        self.states = [s for s in states if s[0] != self.exit and s != (self.key, False)]

    def letter(self, place):
        return self.lines[2 * place[0] + 1][4 * place[1] + 2]

    def is_open(self, place, direction):
        """Can the place be left there, as far as walls and traps go?"""
        down, right = MOVES[direction]
        between = self.lines[2 * place[0] + 1 + down][4 * place[1] + 2 + 2 * right]
        return between == " " and self.letter(place) != "x"

    def sides(self, place):
        return f"[{''.join(d for d in MOVES if self.is_open(place, d))}]"

    def move(self, place, has_key, direction):
        down, right = MOVES[direction]
        target = (place[0] + down, place[1] + right)
        if self.is_open(place, direction) and (target != self.exit or has_key):
            place = target
        return place, has_key or place == self.key

    def distance(self, place, has_key):
        """Fewest moves to the exit; -1 where there is no way."""
        reached, waiting = {(place, has_key): 0}, deque([(place, has_key)])
        while waiting:
            state = waiting.popleft()
            if state[0] == self.exit:
                return reached[state]
            for following in (self.move(*state, direction) for direction in MOVES):
                if following not in reached:
                    reached[following] = reached[state] + 1
                    waiting.append(following)
        return -1

    def potential(self, place, has_key):
        moves = self.distance(place, has_key)
        return -1.0 if moves < 0 else -moves / (self.size**2 * (2 if self.key else 1))

    def observation(self, place, has_key, aliased):
        where = [] if aliased else list(map(str, place))
        holds = [["no-key", "has-key"][has_key]] if self.key else []
        return [*where, self.sides(place), *holds]

    def episode(self, names, *, think, limit, warmer):
        """Plays token names; (place, has_key, thoughts, moves, reward, terminated, truncated) of
        each, up to the end."""
        place, has_key, thoughts, moves = self.start, self.key is None, 0, 0
        for name in names:
            before = self.potential(place, has_key)
            if name in THOUGHTS and thoughts < think:
                thoughts += 1
            else:
                thoughts, moves = 0, moves + 1
                if name[1:] in MOVES and name[0] == ">":
                    place, has_key = self.move(place, has_key, name[1:])
            terminated = place == self.exit
            truncated = moves == limit and not terminated
            shaping = self.potential(place, has_key) - before if warmer else 0
            yield place, has_key, thoughts, moves, terminated + shaping, terminated, truncated
            if terminated or truncated:
                return


def problem_of(drawing):
    """The problem that a picture shows."""
    board = Board(drawing)
    openings = np.asarray([[board.is_open(place, d) for d in MOVES] for place in board.places])

    def cell(place):
        return None if place is None else jnp.int32(board.places.index(place))

    return make_problem(jnp.asarray(openings), *map(cell, (board.start, board.exit, board.key)))
