"""Detection of NaN, Inf and loss spikes, and its error messages."""

from __future__ import annotations

import math

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.loss_spikes import (
    FEWEST,
    WINDOW,
    NotFiniteError,
    Recent,
    append_update,
    check_checkpoint_tensors,
    check_gradients_exist,
    check_validation_loss,
    find_spike,
    is_finite,
    not_finite_error,
    spike_error,
)


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf), (1.0, -math.inf)])
def test_nan_and_inf_errors_name_step_and_rows(loss: float, norm: float) -> None:
    assert not is_finite(loss, norm)
    error = not_finite_error(7, loss, norm, ["a.jsonl:3", "a.jsonl:9"])
    assert isinstance(error, UserError)
    assert str(error).startswith(f"step 7: loss {loss}, gradient norm {norm}; the update was not applied. Its rows: a.jsonl:3, a.jsonl:9. ")


def test_a_checkpoint_with_nan_or_inf_is_refused() -> None:
    check_checkpoint_tensors(7, [])
    with pytest.raises(
        NotFiniteError, match=r"step 7: a, b, c, d, e \(6 in total\) contain NaN or Inf, so this checkpoint was not committed"
    ):
        check_checkpoint_tensors(7, list("fedcba"))


def test_a_nan_validation_loss_is_refused() -> None:
    with pytest.raises(NotFiniteError, match=r"step 7: validation loss nan; check data\.val"):
        check_validation_loss(7, math.nan)


def test_trained_parameters_without_a_gradient_are_named() -> None:
    with pytest.raises(
        UserError, match=r"the loss does not depend on a, b, c, d, e \(6 in total\), which are set to be trained; freeze them"
    ):
        check_gradients_exist(list("abcdef"))


def test_finite_values_pass() -> None:
    assert is_finite(0.0, 1e30)
    check_validation_loss(1, 0.0)
    check_gradients_exist([])


def test_a_spike_is_described_with_the_median() -> None:
    recent = tuple((2.0 + number % 3, 1.0) for number in range(FEWEST))
    assert find_spike(29.0, 9.0, recent, 10.0) is None and find_spike(0.0, 0.0, recent, 10.0) is None
    assert find_spike(31.0, 11.0, recent, 10.0) == "loss 31 is more than train.spike: 10 times the median 3 of the last 10 updates"
    assert find_spike(3.0, 11.0, recent, 10.0) == "gradient norm 11 is more than train.spike: 10 times the median 1 of the last 10 updates"
    assert find_spike(31.0, 11.0, recent, None) is None, "disabled"
    assert find_spike(31.0, 11.0, recent[1:], 10.0) is None, "too few updates"
    assert find_spike(None, 9.0, recent, 10.0) is None, "a loss that is not compared"
    assert str(find_spike(None, 11.0, recent, 10.0)).startswith("gradient norm 11 is more")
    without = (*recent, *[(0.0, 0.0)] * 30)
    assert find_spike(None, 9.0, without, 10.0) is None, "updates without a gradient are no measure"
    assert find_spike(None, 11.0, without, 10.0) is not None
    error = spike_error(7, "loss 31 is more", ["a.jsonl:3", "a.jsonl:9"])
    assert isinstance(error, NotFiniteError) and error.reason == "spike"
    assert str(error).startswith("step 7: loss 31 is more; the update was not applied. Its rows: a.jsonl:3, a.jsonl:9. Check them")


def test_only_the_last_updates_are_kept() -> None:
    recent: Recent = ()
    for number in range(WINDOW + 5):
        recent = append_update(recent, float(number), 1.0)
    assert len(recent) == WINDOW and recent[0] == (5.0, 1.0) and recent[-1] == (WINDOW + 4.0, 1.0)
