"""What a training step says of its rollout, under the names that users of TRL know."""

from __future__ import annotations

import jax.numpy as jnp

from rlcredit import masked
from rlcredit.types import Array, Price, Rollout, owned


def rollout_metrics(
    rollout: Rollout, raw: Array, final: Array, sampled: Price, measured: Price
) -> dict[str, Array]:
    """Scalars of one rollout and its credit.

    `reward_std` is the mean over problems of the deviation among their samples. `adv/raw_*` is what
    the rule returned, `adv/final_*` what the loss sees, over the tokens that are learned from;
    `tokens_read` counts those of prompts and prefixes that sampling went on from; `price/*` is what
    the evidence cost; `occupancy` the share of lane-steps of the sampling that wrote a token.
    """
    mask, own = rollout.mask, owned(rollout)
    total = masked.sum(rollout.reward, mask, axis=-1)
    present = jnp.any(mask, axis=-1)
    spread = masked.std(total, present, axis=1)
    length = masked.count(mask, axis=-1)
    return {
        "reward": masked.mean(total, present),
        "reward_std": jnp.mean(spread),
        "frac_reward_zero_std": jnp.mean(spread == 0, dtype=jnp.float32),
        "completions/mean_length": masked.mean(length, present),
        "completions/max_length": jnp.max(length),
        "completions/truncated_ratio": masked.mean(rollout.truncated, present),
        "tokens": masked.count(own),
        "tokens_read": jnp.float32(sampled.tokens_scored),
        "occupancy": 1 - sampled.idle_lane_steps / sampled.lane_steps,
        "adv/raw_mean": masked.mean(raw, own),
        "adv/raw_std": masked.std(raw, own),
        "adv/raw_max": masked.max(jnp.abs(raw), own),
        "adv/final_mean": masked.mean(final, own),
        "adv/final_std": masked.std(final, own),
        **{f"price/{name}": jnp.float32(count) for name, count in measured._asdict().items()},
    }
