"""The loss of the chunked head is that of full logits, with its gradients, and full logits never exist."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.torch_version import TorchVersion

from overtone.finetune.modeling import loss_head
from overtone.finetune.modeling.loss_head import AT_ONCE, SMALLEST, BaseHead, LossHead, Shaping, _add_product, rows_of_a_chunk

ROWS = SMALLEST["cpu"]
SHAPINGS = [Shaping(), Shaping(scale=0.25), Shaping(cap=5.0), Shaping(scale=3.0, cap=2.0)]


def head_and_data(rows: int, words: int = 97, width: int = 24, bias: bool = False, dtype: torch.dtype = torch.float64) -> tuple:  # type: ignore[type-arg]
    torch.manual_seed(3)
    linear = nn.Linear(width, words, bias=bias, dtype=dtype)
    hidden = torch.randn(rows, width, dtype=dtype) * 2
    return linear, hidden, torch.randint(words, (rows,))


def full(linear: nn.Linear, hidden: Tensor, targets: Tensor, shaping: Shaping) -> tuple[Tensor, Tensor]:
    logits = linear(hidden).float() * shaping.scale
    if shaping.cap is not None:
        logits = torch.tanh(logits / shaping.cap) * shaping.cap
    return functional.cross_entropy(logits, targets, reduction="sum"), (logits.argmax(1) == targets).sum()


@pytest.mark.parametrize(
    ("positions", "words", "device", "rows"),
    [
        (16384, 151936, "cuda", 2048),  # a language model's: the fewest rows
        (10**6, 151936, "cuda", 15625),  # a 64th
        (1600, 2048, "cuda", 2048),  # a codebook's: all frames at once
        (1600, 2048, "cpu", 256),
    ],
)
def test_chunks_have_a_minimum_size(positions: int, words: int, device: str, rows: int) -> None:
    assert rows_of_a_chunk(positions, words, device) == rows


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small heads go chunk by chunk too."""
    monkeypatch.setitem(AT_ONCE, "cpu", 1)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("shaping", SHAPINGS, ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, ROWS, 3 * ROWS + 17])
def test_value_hits_and_gradients_are_those_of_full_logits(rows: int, bias: bool, shaping: Shaping) -> None:
    linear, hidden, targets = head_and_data(rows, bias=bias, dtype=torch.float32)
    expected_inputs, own_inputs = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    expected, hits = full(linear, expected_inputs, targets, shaping)
    wanted = torch.autograd.grad(expected * 0.37, [expected_inputs, *linear.parameters()])
    nll, own_hits = LossHead(linear, shaping)(own_inputs, targets)
    found = torch.autograd.grad(nll * 0.37, [own_inputs, *linear.parameters()])
    assert torch.allclose(nll, expected, rtol=1e-6) and own_hits == hits
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).norm() <= 1e-6 * other.norm()


@pytest.mark.usefixtures("chunks")
def test_bf16_gradients_stay_as_near_to_fp64_as_full_logits_are() -> None:
    linear, hidden, targets = head_and_data(40 * ROWS, words=211, dtype=torch.bfloat16)
    exact = nn.Linear(24, 211, bias=False, dtype=torch.float64)
    exact.weight.data = linear.weight.double()
    (truth,) = torch.autograd.grad(functional.cross_entropy(exact(hidden.double()), targets, reduction="sum"), [exact.weight])
    (usual,) = torch.autograd.grad(full(linear, hidden, targets, Shaping())[0], [linear.weight])
    (own,) = torch.autograd.grad(LossHead(linear, Shaping())(hidden, targets)[0], [linear.weight])
    assert own.dtype == torch.bfloat16
    assert (own - truth).norm() <= 1.5 * (usual - truth).norm() <= 0.05 * truth.norm()


def test_a_kernel_that_cannot_be_built_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    """On a CPU Triton has no driver, which is what a GPU machine without a compiler meets."""
    loss_head.kernel_works.cache_clear()
    assert [loss_head.kernel_works(torch.device("cpu")) for _ in range(2)] == [False, False]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: the loss head's kernel cannot be built on cpu (") and "python3-dev" in line


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products_are_added_in_fp32_wherever_they_are(dtype: torch.dtype) -> None:
    """On a CPU the sum; on other devices that torch takes the call, in place: no CPU has a product of another type than its factors'."""
    # On meta tensors, torch 2.11 takes `out_dtype` for the factor `beta`; its kernel for GPUs has the same signature as later ones.
    for device in ("cpu", "meta") if TorchVersion(torch.__version__) >= (2, 12) else ("cpu",):
        total, left, right = torch.ones(5, 3, device=device), torch.ones(5, 7, device=device), torch.ones(7, 3, device=device)
        before = total.data_ptr()
        _add_product(total, left.to(dtype), right.to(dtype))
        assert total.dtype == torch.float32 and total.data_ptr() == before
        assert device == "meta" or bool((total == 8).all())


def test_frozen_parameters_get_no_gradient_and_cost_none() -> None:
    linear, hidden, targets = head_and_data(40, dtype=torch.float32)
    linear.requires_grad_(False)
    nll, _ = LossHead(linear, Shaping())(hidden.requires_grad_(), targets)
    nll.backward()
    assert linear.weight.grad is None and hidden.grad is not None
    with torch.no_grad():
        assert not LossHead(linear, Shaping())(hidden, targets)[0].requires_grad


def test_without_targets_there_is_a_zero_with_a_graph() -> None:
    linear, hidden, targets = head_and_data(0, dtype=torch.float32)
    nll, hits = LossHead(linear, Shaping())(hidden.requires_grad_(), targets)
    nll.backward()
    assert nll == 0 and hits == 0 and not linear.weight.grad.any()


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that torch's allocator held during `work`, beyond what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = work()
    changes = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert changes and result is not None
    return max(accumulate(event.nbytes() for event in sorted(changes, key=lambda event: event.start_ns())))


@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 0.05), (torch.bfloat16, 0.05)], ids=str)
def test_what_is_added_to_memory_is_a_twentieth_of_full_logits(dtype: torch.dtype, share: float) -> None:
    linear, hidden, targets = head_and_data(64 * ROWS, words=2048, width=8, dtype=dtype)
    hidden.requires_grad_()
    full_logits = len(hidden) * 2048 * 4
    gradients = 4 * (hidden.numel() + 2 * linear.weight.numel())  # wanted in any case; the weight's in fp32 and once more in its own type
    added = peak_bytes(lambda: LossHead(linear, Shaping())(hidden, targets)[0].backward() or True)  # type: ignore[func-returns-value]
    usual = peak_bytes(lambda: full(linear, hidden, targets, Shaping())[0].backward() or True)  # type: ignore[func-returns-value]
    assert added - gradients <= share * full_logits, f"{added - gradients:,} of {full_logits:,}"
    assert usual >= full_logits, "the measure must see full logits where there are some"


def head_of_a_base(rows: int, words: int = 97, width: int = 24, bias: bool = False, dtype: torch.dtype = torch.float32) -> tuple:  # type: ignore[type-arg]
    """Another head, and the states of its model."""
    torch.manual_seed(4)
    return nn.Linear(width, words, bias=bias, dtype=dtype), torch.randn(rows, width, dtype=dtype) * 2


def full_distance(linear: nn.Linear, hidden: Tensor, base: nn.Linear, states: Tensor, shaping: Shaping) -> Tensor:
    """KL(base ‖ model), summed over positions, from full logits."""
    shaped = []
    for logits in (linear(hidden), base(states)):
        scaled = logits.float() * shaping.scale
        shaped.append(scaled if shaping.cap is None else torch.tanh(scaled / shaping.cap) * shaping.cap)
    model, base_logits = shaped
    return functional.kl_div(model.log_softmax(1), base_logits.detach().log_softmax(1), reduction="sum", log_target=True)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("shaping", SHAPINGS, ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3 * ROWS + 17])
def test_the_distance_to_a_base_and_its_gradients_are_those_of_full_logits(rows: int, bias: bool, shaping: Shaping) -> None:
    linear, hidden, targets = head_and_data(rows, bias=bias, dtype=torch.float32)
    base, states = head_of_a_base(rows, bias=bias)
    expected_inputs, own_inputs = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    expected = full_distance(linear, expected_inputs, base, states, shaping)
    wanted = torch.autograd.grad(expected * 0.37, [expected_inputs, *linear.parameters()])
    head = LossHead(linear, shaping)
    head.set_base_head(BaseHead(LossHead(base, shaping)))
    nll, hits, distance = head(own_inputs, targets, states)
    found = torch.autograd.grad(distance * 0.37, [own_inputs, *linear.parameters()], retain_graph=True)
    assert torch.allclose(distance, expected, rtol=2e-5) and distance > 0.01 * rows
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).norm() <= 2e-5 * other.norm()
    alone = LossHead(linear, shaping)(own_inputs, targets)
    assert (nll, hits) == alone and {*head.state_dict()} == {*linear.state_dict()}, "the base's head is no part of this one"
    assert all(parameter.grad is None for parameter in base.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_distance_of_equal_states_is_zero_with_a_zero_gradient(dtype: torch.dtype) -> None:
    linear, hidden, targets = head_and_data(50, dtype=dtype)
    own = hidden.clone().requires_grad_()
    *_, distance = LossHead(linear)(own, targets, hidden)
    assert distance == 0 and not any(each.any() for each in torch.autograd.grad(distance, [own, linear.weight]))


def test_a_frozen_head_is_that_of_the_base() -> None:
    linear, hidden, targets = head_and_data(40, dtype=torch.float32)
    linear.requires_grad_(False)
    states = hidden + 0.3
    own = hidden.clone().requires_grad_()
    *_, distance = LossHead(linear)(own, targets, states)
    distance.backward()
    expected_inputs = hidden.clone().requires_grad_()
    expected = full_distance(linear, expected_inputs, linear, states, Shaping())
    expected.backward()
    assert torch.allclose(distance, expected, rtol=1e-4) and linear.weight.grad is None
    assert own.grad is not None and expected_inputs.grad is not None
    assert (own.grad - expected_inputs.grad).norm() <= 1e-4 * expected_inputs.grad.norm()
    with torch.no_grad():
        assert not LossHead(linear)(own, targets, states)[2].requires_grad


def test_without_targets_the_distance_is_a_zero_with_a_graph() -> None:
    linear, hidden, targets = head_and_data(0, dtype=torch.float32)
    *_, distance = LossHead(linear)(hidden.requires_grad_(), targets, hidden.detach())
    distance.backward()
    assert distance == 0 and not linear.weight.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_distance_adds_at_most_a_tenth_of_full_logits_to_memory(dtype: torch.dtype) -> None:
    linear, hidden, targets = head_and_data(64 * ROWS, words=2048, width=8, dtype=dtype)
    base, states = head_of_a_base(64 * ROWS, words=2048, width=8, dtype=dtype)
    hidden.requires_grad_()
    head = LossHead(linear)
    head.set_base_head(BaseHead(LossHead(base)))
    full_logits = len(hidden) * 2048 * 4
    # Wanted in any case, and once for each of the two sums: the gradients, the weight's in fp32 and once more in its own type.
    gradients = 2 * 4 * (hidden.numel() + 2 * linear.weight.numel())
    added = peak_bytes(lambda: torch.stack(head(hidden, targets, states)[::2]).sum().backward() or True)
    usual = peak_bytes(lambda: full_distance(linear, hidden, base, states, Shaping()).backward() or True)  # type: ignore[func-returns-value]
    assert added - gradients <= 0.1 * full_logits, f"{added - gradients:,} of {full_logits:,}"
    assert usual >= 2 * full_logits, "the measure must see full logits where there are some"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel needs a CUDA GPU")
@pytest.mark.parametrize("shaping", SHAPINGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("rows", "words", "width", "bias", "column"),
    [
        (300, 2048, 64, False, True),  # a codebook's: the targets are a column of all 15
        (5000, 2048, 64, True, False),  # several chunks
        (2100, 151936, 64, False, False),  # a language model's
    ],
)
def test_a_gpu_computes_what_full_logits_in_fp64_say(
    rows: int, words: int, width: int, bias: bool, column: bool, dtype: torch.dtype, shaping: Shaping
) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    loss_head.kernel_works.cache_clear()
    assert loss_head.kernel_works(device)
    linear, hidden, targets = (each.to(device) for each in head_and_data(rows, words, width, bias))
    linear.to(dtype)
    hidden = hidden.to(dtype).requires_grad_()
    if column:
        targets = torch.randint(words, (rows, 15), device=device)[:, 7]
        assert not targets.is_contiguous()
    exact = nn.Linear(width, words, bias=bias, dtype=torch.float64, device=device)
    exact.load_state_dict(linear.state_dict())
    inputs = hidden.detach().double().requires_grad_()
    logits = exact(inputs) * shaping.scale
    if shaping.cap is not None:
        logits = torch.tanh(logits / shaping.cap) * shaping.cap
    expected = functional.cross_entropy(logits, targets, reduction="sum")
    wanted = torch.autograd.grad(expected * 0.37, [inputs, *exact.parameters()])
    nll, hits = LossHead(linear, shaping)(hidden, targets)
    found = torch.autograd.grad(nll * 0.37, [hidden, *linear.parameters()])
    # bf16 rounds each logit to 8 bits, and words whose logits round to the same value are all the highest.
    near = 1e-4 if dtype == torch.float32 else 2e-2
    assert abs(nll.double() - expected) <= near * expected
    if dtype == torch.float32:
        assert abs(hits - (logits.argmax(1) == targets).sum()) <= 1
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == dtype and (one.double() - other).norm() <= near * other.norm()
