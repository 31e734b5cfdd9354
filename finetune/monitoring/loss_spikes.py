"""Detection of NaN, Inf and loss spikes: in the loss and gradient of an update, in validation losses, and in checkpoints."""

from __future__ import annotations

import math
from statistics import median

from overtone.finetune.errors import UserError

Recent = tuple[tuple[float, float], ...]
"""(loss, gradient norm) of the last updates, the newest last; the same on all ranks."""
WINDOW = 50
"""Number of updates over which the medians are computed."""
FEWEST = 10
"""Number of updates below which no spike is reported."""


class NotFiniteError(UserError):
    """The loss or the gradient is NaN or infinite. Raised before the update, so the last commit and the weights stay clean."""

    reason = "not finite"
    """Value of `reason` in `exit.json`."""


class SpikeError(NotFiniteError):
    """The loss or the gradient is finite, but far above its recent median (`train.spike`). Handled like a non-finite update."""

    reason = "spike"


def append_update(recent: Recent, loss: float, norm: float) -> Recent:
    """`recent` with one more update; the oldest is dropped beyond `WINDOW`."""
    return (*recent, (loss, norm))[-WINDOW:]


def find_spike(loss: float | None, norm: float, recent: Recent, factor: float | None) -> str | None:
    """A description of the value that exceeds `factor` times its median over the `recent` updates; None if neither does. `loss`: None if
    it is not compared. Updates without a gradient, as those of rollouts that all got the same reward, are no measure for the norm."""
    if factor is None:
        return None
    losses, norms = [each for each, _ in recent], [each for _, each in recent if each > 0]
    for name, value, earlier in (("loss", loss, losses), ("gradient norm", norm, norms)):
        if value is not None and len(earlier) >= FEWEST and value > factor * (usual := median(earlier)):
            found = f"{name} {value:.4g} is more than train.spike: {factor:g} times the median {usual:.4g}"
            return f"{found} of the last {len(earlier)} updates"
    return None


def spike_error(step: int, problem: str, rows: list[str]) -> SpikeError:
    """`rows`: places (file:line) of the step's samples, of all ranks."""
    return SpikeError(
        f"step {step}: {problem}; the update was not applied. Its rows: {', '.join(rows)}. "
        "Check them, or raise train.spike; the same command resumes from the last checkpoint"
    )


def is_finite(loss: float, norm: float) -> bool:
    """All ranks see the same reduced loss and norm, so either all of them skip or stop, or none does."""
    return math.isfinite(loss) and math.isfinite(norm)


def not_finite_error(step: int, loss: float, norm: float, rows: list[str]) -> NotFiniteError:
    """`rows`: places (file:line) of the step's samples, of all ranks."""
    return NotFiniteError(
        f"step {step}: loss {loss}, gradient norm {norm}; the update was not applied. "
        f"Its rows: {', '.join(rows)}. Check them, or lower train.lr; the same command resumes from the last checkpoint"
    )


def check_validation_loss(step: int, loss: float) -> None:
    """Raises `NotFiniteError` for a NaN or infinite loss, which could neither be compared nor stored in a checkpoint."""
    if not math.isfinite(loss):
        raise NotFiniteError(
            f"step {step}: validation loss {loss}; check data.val, or lower train.lr; the same command resumes from the last checkpoint"
        )


def check_checkpoint_tensors(step: int, poisoned: list[str]) -> None:
    """Raises `NotFiniteError` if a checkpoint contains NaN or Inf. `poisoned`: names of such tensors, the same on all ranks."""
    if poisoned:
        raise NotFiniteError(
            f"step {step}: {', '.join(sorted(poisoned)[:5])} ({len(poisoned)} in total) contain NaN or Inf, so this checkpoint was not "
            "committed; lower train.lr; the same command resumes from the last checkpoint"
        )


def check_gradients_exist(unreached: list[str]) -> None:
    """Raises `UserError` for trained parameters without a gradient: without optimizer state no checkpoint could be written later."""
    if unreached:
        raise UserError(
            f"the loss does not depend on {', '.join(unreached[:5])} ({len(unreached)} in total), which are set to be trained; "
            "freeze them (the recipe's `trainable`, or model.lora.targets)"
        )
