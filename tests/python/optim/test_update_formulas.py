"""Rules that torch.optim has not: the papers' formulas in docs/update_rules.md's order, to the bit.

The references below are NumPy, but for the fused additions, which are the C library's fma.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from typing import Any

import numpy as np
import pytest

import gradring as gr
from optim_rules import same_bits

Array = np.ndarray[Any, Any]

STEPS = 200
LIBRARY = ctypes.CDLL(ctypes.util.find_library("m"))
FMAS = {np.dtype(np.float32): LIBRARY.fmaf, np.dtype(np.float64): LIBRARY.fma}
LIBRARY.fmaf.argtypes, LIBRARY.fmaf.restype = [ctypes.c_float] * 3, ctypes.c_float
LIBRARY.fma.argtypes, LIBRARY.fma.restype = [ctypes.c_double] * 3, ctypes.c_double


def fma(a: Any, b: Any, c: Array) -> Array:
    """a * b + c, rounded once."""
    function = FMAS[c.dtype]
    terms = np.broadcast_arrays(a, b, c)
    values = [function(*map(float, term)) for term in zip(*(t.flat for t in terms), strict=True)]
    return np.array(values, c.dtype).reshape(c.shape)


def mean_square(row: Array) -> Any:
    """In double: lane i mod 8, then the lanes in pairs."""
    lanes = np.zeros(8)
    for at in range(0, row.size, 8):
        part = row[at : at + 8].astype(np.float64)
        lanes[: part.size] += part * part
    for apart in (4, 2, 1):
        lanes = lanes[:apart] + lanes[apart : 2 * apart]
    return row.dtype.type(lanes[0] / row.size)


class Reference:
    """Steps of one row; numbers of the rule are rounded to the row's dtype where they are used."""

    def __init__(self, rule: Any, row: Array) -> None:
        self.rule, self.row, self.number = rule, row, row.dtype.type
        self.steps = 0
        first = getattr(rule, "initial_accumulator_value", 0)
        self.sums = np.full(row.shape, first, row.dtype)
        self.sum = self.number(first)
        self.linear = np.zeros_like(row)
        self.mean = np.zeros_like(row)
        self.square = self.number(0)

    def step(self, grad: Array) -> None:
        self.steps += 1
        getattr(self, "_" + self.rule.to_core()["kind"])(self.number, self.rule, grad)

    def _sum(self, number: Any, rule: Any, grad: Array) -> None:
        self.row += grad

    def _row_wise_adagrad(self, number: Any, rule: Any, grad: Array) -> None:
        if rule.weight_decay:
            grad = fma(self.row, number(rule.weight_decay), grad)
        self.sum += mean_square(grad)
        factor = number(-rule.lr) / (np.sqrt(self.sum) + number(rule.eps))
        self.row[...] = fma(grad, factor, self.row)

    def _row_wise_adam(self, number: Any, rule: Any, grad: Array) -> None:
        beta1, beta2 = rule.betas
        if rule.weight_decay:
            self.row *= number(1 - rule.lr * rule.weight_decay)
        weight = number(1 - beta1)
        if weight < 0.5:
            self.mean = fma(weight, grad - self.mean, self.mean)
        else:
            self.mean = fma(grad - self.mean, weight - number(1), grad)
        self.square = self.square * number(beta2) + number(1 - beta2) * mean_square(grad)
        root = np.sqrt(self.square) / number((1 - beta2**self.steps) ** 0.5)
        factor = number(-(rule.lr / (1 - beta1**self.steps))) / (root + number(rule.eps))
        self.row[...] = fma(self.mean, factor, self.row)

    def _ftrl(self, number: Any, rule: Any, grad: Array) -> None:
        lr, l1, l2, beta = map(number, (rule.lr, rule.l1, rule.l2, rule.beta))
        before = np.sqrt(self.sums)
        self.sums = fma(grad, grad, self.sums)
        after = np.sqrt(self.sums)
        self.linear += grad - (after - before) / lr * self.row
        moved = (np.copysign(l1, self.linear) - self.linear) / ((beta + after) / lr + l2)
        self.row[...] = np.where(abs(self.linear) <= l1, number(0), moved)


OPTIONS: list[Any] = [
    gr.optim.Sum(),
    gr.optim.RowWiseAdagrad(),
    gr.optim.RowWiseAdagrad(lr=0.1, weight_decay=0.05, initial_accumulator_value=0.1),
    gr.optim.RowWiseAdam(),
    gr.optim.RowWiseAdam(lr=0.01, betas=(0.3, 0.9), weight_decay=0.2),
    gr.optim.FTRL(lr=0.1),
    gr.optim.FTRL(lr=0.1, l1=0.5, l2=0.1, beta=0.5, initial_accumulator_value=0.1),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("dim", [1, 6, 21])
@pytest.mark.parametrize("rule", OPTIONS)
def test_every_step_is_the_formulas(rule: Any, dim: int, dtype: str) -> None:
    random = np.random.default_rng(dim)
    table = random.standard_normal((3, dim)).astype(dtype)
    references = [Reference(rule, row.copy()) for row in table]
    state: dict[str, Any] = {}
    for _ in range(STEPS):
        grads = random.standard_normal(table.shape).astype(dtype)
        rule.update(table, grads, state)
        for reference, grad in zip(references, grads, strict=True):
            reference.step(grad)
    assert same_bits(table, np.stack([reference.row for reference in references]))


def test_row_wise_rules_keep_one_number_a_row() -> None:
    grads = np.ones((5, 4), np.float32)
    state: dict[str, Any] = {}
    gr.optim.RowWiseAdagrad().update(grads.copy(), 2 * grads, state)
    assert {name: value.tolist() for name, value in state.items()} == {"sum": [4.0] * 5}
    state = {}
    gr.optim.RowWiseAdam().update(grads.copy(), grads, state)
    assert state["exp_avg"].shape == (5, 4)
    assert state["exp_avg_sq"].shape == (5,)


def test_ftrl_leaves_weights_at_zero_until_l1_is_passed() -> None:
    rule = gr.optim.FTRL(lr=1.0, l1=2.5)
    param = np.zeros(2, np.float32)
    state: dict[str, Any] = {}
    zeros = []
    for _ in range(4):
        rule.update(param, np.array([1, -0.5], np.float32), state)
        zeros.append((param == 0).tolist())
    assert zeros == [[True, True], [True, True], [False, True], [False, True]]
    assert param[0] < 0
