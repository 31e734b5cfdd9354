"""What may stop a run: a signal, or a number that is not one."""

from __future__ import annotations

import math
import signal
from types import FrameType

from finetune.errors import UserError

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class NotFiniteError(UserError):
    """The loss or the gradient is NaN or infinite. Raised before the update, so the last commit and the weights stay clean."""


def check_finite(step: int, loss: float, norm: float, rows: list[str]) -> None:
    """All ranks see the same reduced loss and norm, so all of them stop, or none."""
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise NotFiniteError(
            f"step {step}: loss {loss}, gradient norm {norm}; the update was not applied. "
            f"This rank's rows: {', '.join(rows)}. Look at them, or lower train.lr; the same command goes on from the last checkpoint"
        )


def check_measured(step: int, loss: float) -> None:
    """As `check_finite`, for an evaluation: such a loss could neither be compared nor stand in a checkpoint."""
    if not math.isfinite(loss):
        raise NotFiniteError(
            f"step {step}: validation loss {loss}; look at data.val, or lower train.lr; the same command goes on from the last checkpoint"
        )


def check_reached(unreached: list[str]) -> None:
    """A trained parameter without a gradient has no optimizer state, so no checkpoint could be made: better told at the first step."""
    if unreached:
        raise UserError(
            f"the loss does not reach {', '.join(unreached[:5])} ({len(unreached)} in all), which would be trained; "
            "freeze them (the recipe's `trainable`, or model.lora.targets)"
        )


class StopSignals:
    """While open, the first SIGTERM, SIGINT or SIGUSR1 asks for a stop at the next step; a second one ends the process at once."""

    def __init__(self) -> None:
        self.received: str | None = None

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.received = signal.Signals(number).name
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
