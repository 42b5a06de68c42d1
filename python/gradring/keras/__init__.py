"""Keras 3, on the backends JAX and PyTorch: averaged gradients, and what ranks share around them.

`gradients` makes an optimizer average, `callbacks` are for `model.fit` (docs/keras.md).

Needs Keras: ``pip install 'gradring[keras]'`` and a backend. Nothing outside this package imports
it.
"""

try:
    import keras as _keras  # noqa: F401
except ModuleNotFoundError as _error:
    if _error.name != "keras":
        raise
    raise ModuleNotFoundError(
        "gradring.keras needs Keras 3: pip install 'gradring[keras]'", name="keras"
    ) from None

from gradring.keras.callbacks import AverageMetrics, BroadcastInitial
from gradring.keras.gradients import distributed

__all__ = ["AverageMetrics", "BroadcastInitial", "distributed"]
