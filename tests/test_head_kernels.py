"""The head's kernels for TPU and GPU, run without either: as the whole head in plain JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as simulator
from jax.experimental.pallas import tpu as pltpu

from rlcredit.kernels import head_gpu, head_tpu
from rlcredit.kernels.head_gpu import supported, token_log_prob_gpu
from rlcredit.kernels.head_tpu import token_log_prob_tpu
from rlcredit.kernels.head_tpu_kernels import _LIMIT, Tiles, tiles_of
from rlcredit.kernels.token_log_prob import log_prob_and_entropy, logits
from rlcredit.types import InputError

TEMPERATURE = 0.7
F32, BF16 = jnp.float32, jnp.bfloat16
# Relative errors of (log_prob, entropy) and of the gradients. Ours round the gradient of the logits
# to the operands' dtype before they multiply with it, plain JAX does not.
TOLERANCE = {F32: (1e-6, 1e-6), BF16: (1e-6, 4e-3)}
GPU = pytest.mark.skipif(
    jax.__version_info__ < (0, 11), reason="Mosaic GPU kernels need JAX 0.11 or newer"
)


def problem(rows, width, vocabulary, dtype=F32, head_dtype=None, legal=False):
    rng = np.random.default_rng(0)
    allowed = rng.random((rows, vocabulary)) < 0.6
    allowed[0] = False
    return {
        "hidden": jnp.asarray(rng.normal(size=(rows, width)), dtype),
        "head": jnp.asarray(rng.normal(size=(width, vocabulary)) * 0.3, head_dtype or dtype),
        "bias": jnp.asarray(rng.normal(size=vocabulary), F32),
        "tokens": jnp.asarray(rng.integers(0, vocabulary, rows), jnp.int32),
        "legal": jnp.asarray(allowed) if legal else None,
        "cotangents": jnp.asarray(rng.normal(size=(2, rows)), F32),
    }


def plain(hidden, head, tokens, *, temperature, bias, legal):
    return log_prob_and_entropy(logits(hidden, head, temperature, legal, bias), tokens)


def results(function, given, temperature=TEMPERATURE, **settings):
    """(log_prob, entropy, d hidden, d head and, where there is one, d bias)."""
    learned = [given[name] for name in ("hidden", "head", "bias") if given[name] is not None]

    def loss(hidden, head, bias=None):
        settings_ = {"temperature": temperature, "bias": bias, "legal": given["legal"], **settings}
        pair = function(hidden, head, given["tokens"], **settings_)
        return jnp.sum(given["cotangents"] * jnp.stack(pair)), pair

    gradient = jax.jit(jax.value_and_grad(loss, tuple(range(len(learned))), has_aux=True))
    (_, pair), gradients = gradient(*learned)
    return (*pair, *gradients)


def assert_close(found, wanted, of_values, of_gradients):
    assert len(found) == len(wanted)
    for number, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        mine, theirs = np.asarray(mine, np.float64), np.asarray(theirs, np.float64)
        error = np.linalg.norm(mine - theirs) / np.linalg.norm(theirs)
        assert error < (of_values if number < 2 else of_gradients), (number, error)


@pytest.mark.parametrize("tiles", [Tiles(8, 128, 16), Tiles(8, 128, 8)], ids=["once", "waves"])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_tpu_is_the_plain_head_for_shapes_that_fit_no_tile(dtype, tiles, monkeypatch):
    monkeypatch.setattr(head_tpu, "tiles_of", lambda *_: tiles)
    given = problem(13, 24, 300, dtype, legal=True)
    wanted = results(plain, given)
    assert_close(results(token_log_prob_tpu, given, interpret=True), wanted, *TOLERANCE[dtype])


def test_tpu_without_bias_and_legal_mask_and_with_a_head_of_another_dtype(monkeypatch):
    monkeypatch.setattr(head_tpu, "tiles_of", lambda *_: Tiles(8, 128, 16))
    given = problem(16, 24, 256, BF16, head_dtype=F32) | {"bias": None}
    wanted = results(plain, given, 1.0)
    found = results(token_log_prob_tpu, given, 1.0, interpret=True)
    assert_close(found, wanted, *TOLERANCE[BF16])


def test_tpu_row_without_a_legal_token_is_uniform(monkeypatch):
    monkeypatch.setattr(head_tpu, "tiles_of", lambda *_: Tiles(8, 128, 16))
    log_prob, entropy, d_hidden, *_ = results(
        token_log_prob_tpu, problem(13, 24, 300, legal=True), interpret=True
    )
    np.testing.assert_allclose([log_prob[0], entropy[0]], [-np.log(300), np.log(300)], rtol=1e-6)
    assert np.all(d_hidden[0] == 0)


# Shapes that fit no tile without waves, and waves with a vocabulary that fits: the simulator cannot
# let an array take the memory of another one whose last tile is not whole.
@pytest.mark.parametrize(("vocabulary", "wave"), [(300, 16), (256, 8)])
def test_tpu_simulator_finds_no_race_and_no_unwritten_memory(vocabulary, wave, monkeypatch):
    monkeypatch.setattr(head_tpu, "tiles_of", lambda *_: Tiles(8, 128, wave))
    given = problem(13, 24, vocabulary, legal=True)
    simulated = pltpu.InterpretParams(detect_races=True, num_cores_or_threads=2)
    found = results(token_log_prob_tpu, given, interpret=simulated)
    assert not simulator.races.races_found
    assert_close(found, results(plain, given), *TOLERANCE[F32])


@pytest.mark.parametrize("width", [24, 256, 1024, 4096, 8192])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_tpu_tiles_fit_into_vector_memory(width, itemsize):
    rows, columns, wave = tiles_of(100_000, width, 151_936, itemsize)
    # Two buffers each of hidden, head, its gradient and what that starts from; the sum, the
    # gradient of a wave, and about six arrays of the size of a tile of logits.
    buffers = 2 * width * (rows * itemsize + columns * (2 * itemsize + 4))
    sums = 4 * width * (columns + wave)
    assert buffers + sums + 6 * 4 * rows * columns <= _LIMIT
    assert rows % 32 == columns % 128 == wave % rows == 0


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_tpu_multiplies_float32_in_float32(dtype):
    given = problem(13, 24, 300, dtype)
    traced = jax.make_jaxpr(lambda: results(token_log_prob_tpu, given, interpret=True))()
    assert ("HIGHEST" in str(traced)) == (dtype == F32)


def on_gpu(given, temperature):
    """Results in the simulator, which raises when it finds a race."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams(detect_races=True)):
        return results(token_log_prob_gpu, given, temperature)


@GPU
def test_gpu_is_the_plain_head_for_rows_that_fit_no_tile(monkeypatch):
    from rlcredit.kernels import head_gpu_kernels

    # Two parts of the vocabulary, more copies than stages, and two pieces of the gradient.
    monkeypatch.setattr(head_gpu_kernels, "_MULTIPROCESSORS", 4)
    monkeypatch.setattr(head_gpu_kernels, "_STAGES", 2)
    monkeypatch.setattr(head_gpu, "_MOST_COLUMNS", 256)
    given = problem(150, 128, 384, BF16)
    assert_close(on_gpu(given, TEMPERATURE), results(plain, given), *TOLERANCE[BF16])


@GPU
def test_gpu_without_bias():
    given = problem(20, 64, 128, BF16) | {"bias": None}
    assert_close(on_gpu(given, 1.0), results(plain, given, 1.0), *TOLERANCE[BF16])


def test_gpu_says_what_it_supports(monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", (0, 11, 0))

    def of(width, vocabulary, dtype, head_dtype=None, legal=None):
        shapes = (3, width), (width, vocabulary)
        dtypes = dtype, head_dtype or dtype
        arrays = map(jax.ShapeDtypeStruct, shapes, dtypes)
        return supported(*arrays, legal)

    assert of(64, 128, BF16)
    assert not of(64, 128, F32)
    assert not of(64, 128, BF16, F32)
    assert not of(32, 128, BF16)
    assert not of(64, 192, BF16)
    assert not of(64, 128, BF16, legal=np.ones((3, 128), bool))
    monkeypatch.setattr(jax, "__version_info__", (0, 10, 2))
    assert not of(64, 128, BF16)


def test_gpu_refuses_what_it_does_not_support():
    given = problem(3, 64, 128)
    with pytest.raises(InputError, match="float32"):
        token_log_prob_gpu(given["hidden"], given["head"], given["tokens"])
