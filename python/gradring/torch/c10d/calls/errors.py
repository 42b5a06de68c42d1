"""Gradring's errors as torch.distributed raises them.

Code around torch.distributed catches RuntimeError or DistBackendError. Each error that leaves the
backend is therefore both: the kind of `gradring.errors`, with its attributes, and DistBackendError.
"""

from __future__ import annotations

from torch.distributed import DistBackendError

from gradring import errors


def _torch_kind(kind: type[errors.Error]) -> type[errors.Error]:
    bases = (kind, DistBackendError)
    return type(kind.__name__, bases, {"__doc__": kind.__doc__, "__module__": kind.__module__})


_KINDS = {
    kind: _torch_kind(kind)
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.Error)
}


def for_torch(error: errors.Error) -> errors.Error:
    """Return the same error as one that is also a DistBackendError."""
    kind = _KINDS.get(type(error))
    if kind is None:
        return error
    copy = kind(*error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy
