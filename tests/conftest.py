"""The whole suite runs on four CPU devices, with promotions and warnings as errors."""

import jax

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
if len(jax.devices()) != 4:
    raise RuntimeError(f"the tests need 4 CPU devices, there are {len(jax.devices())}")
