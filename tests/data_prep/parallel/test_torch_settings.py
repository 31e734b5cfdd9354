"""Threads and TF32 are as requested, and as before afterwards."""

import pytest
import torch

from overtone.data_prep.parallel.torch_settings import disable_tf32, restore_thread_count, use_one_thread


def test_the_thread_count_is_restored_even_after_a_failure() -> None:
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError), restore_thread_count():
        torch.set_num_threads(before + 1)
        raise RuntimeError
    assert torch.get_num_threads() == before


def test_a_worker_computes_with_one_thread_and_restores_the_count() -> None:
    before = torch.get_num_threads()
    with use_one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def tf32() -> tuple[bool, bool, str]:
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision()


@pytest.mark.parametrize("precision", ["high", "medium", "highest"])
def test_without_tf32_products_are_fp32_and_the_flags_are_restored_even_after_a_failure(precision: str) -> None:
    torch.set_float32_matmul_precision(precision)
    try:
        before = tf32()
        assert before == (True, precision != "highest", precision)
        with pytest.raises(RuntimeError), disable_tf32():
            assert tf32() == (False, False, "highest")
            raise RuntimeError
        assert tf32() == before
    finally:
        torch.set_float32_matmul_precision("highest")
