"""JAX: collectives over pytrees of arrays, inside and outside of `jax.jit`, and optax's pattern.

`operations` says what each collective does with buffers, `staged` puts one into a traced program,
`functions` are what users call, `gradients` is what an optimizer needs, and `failures` brings
gradring's own exceptions out of a compiled program (docs/jax.md).

Needs JAX: ``pip install 'gradring[jax]'``. Nothing outside this package imports it.
"""

import atexit as _atexit

try:
    import jax as _jax
except ModuleNotFoundError as _error:
    if _error.name != "jax":
        raise
    raise ModuleNotFoundError(
        "gradring.jax needs JAX: pip install 'gradring[jax]'", name="jax"
    ) from None
if _jax.__version_info__ < (0, 7):
    raise ImportError(f"gradring.jax needs JAX 0.7 or newer, and this is {_jax.__version__}")

try:
    from gradring.jax.failures import own_errors, wait_for_programs
    from gradring.jax.functions import (
        all_gather,
        all_reduce,
        all_to_all,
        barrier,
        broadcast,
        reduce_scatter,
    )
    from gradring.jax.gradients import GradientTransformation, average_gradients, distributed
except (ImportError, AttributeError) as _error:  # Parts that JAX calls experimental, or moves.
    raise ImportError(
        f"gradring.jax does not work with JAX {_jax.__version__}, where something is missing or "
        f"has moved ({_error}): install an older JAX or a newer gradring"
    ) from _error

# Behind what the imports have registered, and so before it: communicators close and the core keeps
# threads that come out of it, while JAX would still wait, and for ever, for programs begun late.
_atexit.register(wait_for_programs)

__all__ = [
    "GradientTransformation",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "average_gradients",
    "barrier",
    "broadcast",
    "distributed",
    "own_errors",
    "reduce_scatter",
]
