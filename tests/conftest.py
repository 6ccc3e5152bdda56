"""The whole suite runs on four CPU devices, with promotions and warnings as errors."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # of the processes that tests start, too

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
if len(jax.devices()) != 4:
    raise RuntimeError(f"the tests need 4 CPU devices, there are {len(jax.devices())}")

# Every compiled program is several memory maps, of which Linux grants a process 65,530; one more
# and the compiler ends in a segmentation fault.
MAPS = Path("/proc/self/maps")
MOST_MAPS = 16_000

# In about this order.
LONGEST = ("test_every_rule", "test_experiments", "test_other_experiments", "test_train_step")


def pytest_collection_modifyitems(items):
    """The longest files first, so that no worker is left alone with one of them at the end."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)


@pytest.fixture(scope="module", autouse=True)
def few_programs():
    """Programs are forgotten between files, where they have become many."""
    yield
    if MAPS.exists() and len(MAPS.read_bytes().splitlines()) > MOST_MAPS:
        jax.clear_caches()
