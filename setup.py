"""Package metadata; tool settings are in pyproject.toml."""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "rlcredit/__init__.py").read_text()).group(1)

PLOTS = ["matplotlib>=3.8"]
PEERS = [
    "jumanji>=1.1",
    "liger-kernel>=0.8",
    "optax>=0.2.5",
    "rlax>=0.1.8",
    "tokamax>=0.0.17; python_version >= '3.12'",
    "torch>=2.8",
    "torchrl>=0.14",
    "transformers>=5.0",
    "trl>=1.16",
]
TESTS = ["hypothesis>=6.100", "pytest>=8.0", "pytest-xdist>=3.8"]

setup(
    name="rlcredit",
    version=VERSION,
    description="A laboratory for credit assignment in reinforcement learning of token policies",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["rlcredit", "rlcredit.*"]),
    python_requires=">=3.11",
    install_requires=[
        "jax>=0.10.2",
        "flax>=0.12",
        "optax>=0.2.5",
        "chex>=0.1.90",
        "orbax-checkpoint>=0.12",
        "tensorboardX>=2.6",
        "tyro>=1.0",
        "numpy>=2.0",
        "scipy>=1.12",
        "rich>=13.0",
    ],
    extras_require={
        "dev": [*PLOTS, *TESTS, "build>=1.2", "ruff>=0.14"],
        "plots": PLOTS,
        "peers": [*PLOTS, *PEERS],
        "tpu": ["jax[tpu]"],
        "cuda13": ["jax[cuda13]"],
    },
    classifiers=[
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
