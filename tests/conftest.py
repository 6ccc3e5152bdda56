"""The whole suite runs on four CPU devices, with promotions and warnings as errors."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # of the processes that tests start, too

import jax

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
if len(jax.devices()) != 4:
    raise RuntimeError(f"the tests need 4 CPU devices, there are {len(jax.devices())}")

# In about this order.
LONGEST = ("test_every_rule", "test_experiments", "test_other_experiments", "test_train_step")


def pytest_collection_modifyitems(items):
    """The longest files first, so that no worker is left alone with one of them at the end."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)
