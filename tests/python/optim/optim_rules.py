"""What the tests of update rules share: each rule with its options, and equality of bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

Case = tuple[str, dict[str, Any]]

TORCH_CASES: list[Case] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.05, "momentum": 0.8, "dampening": 0.3, "weight_decay": 0.01}),
    ("Adagrad", {}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.01, "weight_decay": 0.05}),
    ("Adagrad", {"lr": 0.1, "initial_accumulator_value": 0.1, "eps": 1e-6}),
    ("RMSprop", {}),
    ("RMSprop", {"lr": 0.02, "alpha": 0.9, "weight_decay": 0.01}),
    ("RMSprop", {"lr": 0.02, "momentum": 0.8, "eps": 1e-5}),
    ("RMSprop", {"lr": 0.02, "centered": True, "eps": 0.1}),
    ("RMSprop", {"lr": 0.02, "centered": True, "alpha": 0.4, "momentum": 0.5, "eps": 10.0}),
    ("Adam", {}),
    ("Adam", {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.01, "betas": (0.3, 0.5)}),  # lerp goes from the other end.
    ("AdamW", {}),
    ("AdamW", {"lr": 0.01, "betas": (0.8, 0.99), "weight_decay": 0.2}),
]
OWN_CASES: list[Case] = [
    ("Sum", {}),
    ("RowWiseAdagrad", {}),
    ("RowWiseAdagrad", {"lr": 0.1, "weight_decay": 0.05, "initial_accumulator_value": 0.1}),
    ("RowWiseAdam", {}),
    ("RowWiseAdam", {"lr": 0.01, "betas": (0.3, 0.9), "weight_decay": 0.2}),
    ("FTRL", {"lr": 0.1}),
    ("FTRL", {"lr": 0.1, "l1": 0.5, "l2": 0.1, "beta": 0.5, "initial_accumulator_value": 0.1}),
]
CASES = [*TORCH_CASES, ("SparseAdam", {"lr": 0.01}), *OWN_CASES]


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Tell whether two arrays have one dtype, one shape and the same bits."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def give_exact_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give torch.optim the correctly rounded square root; its own is not exact."""
    import torch

    def root_in_place(self: torch.Tensor) -> torch.Tensor:
        np.sqrt(self.detach().numpy(), out=self.detach().numpy())
        return self

    monkeypatch.setattr(torch.Tensor, "sqrt", lambda self: root_in_place(self.detach().clone()))
    monkeypatch.setattr(torch.Tensor, "sqrt_", root_in_place)
