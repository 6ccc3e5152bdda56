"""Slow references."""

ADVANTAGES = {}
SETTINGS = {}
