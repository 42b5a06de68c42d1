"""Progress: rank 0 shows it, plainly where there is no terminal, and the numbers are right."""

from __future__ import annotations

import builtins
import io
from typing import Any

import pytest

from gradring.progress import PLAIN_SECONDS, Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def train(progress: Progress, clock: Clock, steps: int, seconds: float) -> None:
    with progress:
        for step in range(steps):
            clock.now += seconds
            progress.advance(examples=50, loss=1 / (1 + step))


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRADRING_RANK", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def test_away_from_a_terminal_there_are_few_whole_lines_and_nothing_is_overwritten() -> None:
    stream, clock = io.StringIO(), Clock()
    train(
        Progress(1000, label="epoch 1", baseline=200, stream=stream, clock=clock), clock, 1000, 0.1
    )
    lines = stream.getvalue().split("\n")
    assert lines.pop() == ""
    assert "\r" not in stream.getvalue()
    assert len(lines) <= 1 + 100 / PLAIN_SECONDS
    assert lines[-1] == "epoch 1  1000/1000  loss 0.0010  500 examples/s  speed-up 2.50"


def test_other_ranks_show_nothing_but_know_the_numbers() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(4, rank=1, stream=stream, clock=clock, baseline=25)
    train(progress, clock, 4, 0.5)
    clock.now += 100
    assert stream.getvalue() == ""
    assert (progress.seconds, progress.examples_per_second, progress.speed_up) == (2, 100, 4)


def test_a_terminal_gets_a_live_bar_with_and_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    def show() -> str:
        stream, clock = Terminal(), Clock()
        train(Progress(4, label="epoch 1", stream=stream, clock=clock), clock, 4, 1.0)
        return stream.getvalue()

    with_rich = show()
    assert "4/4" in with_rich
    assert "\x1b" in with_rich

    real_import = builtins.__import__

    def without_rich(name: str, *args: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "rich":
            raise ModuleNotFoundError(name)
        return real_import(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    assert show().startswith("\repoch 1  ")
    assert show().endswith("epoch 1  4/4 [####################]  loss 0.2500  50 examples/s\n")


def test_rank_0_of_a_launcher_on_a_terminal_overwrites_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRADRING_RANK", "0")
    monkeypatch.setenv("COLUMNS", "80")
    stream, clock = io.StringIO(), Clock()
    train(Progress(10, stream=stream, clock=clock), clock, 10, 1.0)
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().count("\r") > 5


def test_a_failure_in_the_loop_is_not_hidden_by_the_display() -> None:
    stream = io.StringIO()

    def fail() -> None:
        with Progress(3, stream=stream) as progress:
            progress.advance(examples=1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "1/3" in stream.getvalue()
