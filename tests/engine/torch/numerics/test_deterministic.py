"""When bits repeat, and what is held for that."""

import threading

import pytest
import torch

from trivium.engine.torch.numerics.deterministic import PINNED, deterministic_algorithms, is_exact, pin_libraries
from trivium.errors import ConfigError


def test_bits_repeat_by_default_everywhere_but_on_gpus() -> None:
    assert [is_exact(None, device) for device in ("cpu", "mps", "cuda")] == [True, True, False]
    assert [is_exact(asked, device) for asked in (True, False) for device in ("cpu", "cuda")] == [
        *(True, True, False, False)
    ]


def test_libraries_are_pinned_and_what_the_user_has_set_alike_stays() -> None:
    environment = {"NCCL_PROTO": "Simple", "NCCL_DEBUG": "INFO"}
    pin_libraries(environment)
    assert environment == {"NCCL_DEBUG": "INFO", **PINNED}


def test_what_the_user_has_set_otherwise_is_never_overridden() -> None:
    environment = {"NCCL_ALGO": "Tree", "NCCL_NVLS_ENABLE": "1"}
    with pytest.raises(ConfigError) as caught:
        pin_libraries(environment)
    assert str(caught.value) == (
        "engine.deterministic: is true, which needs NCCL_ALGO=Ring, NCCL_NVLS_ENABLE=0, "
        "but the environment has NCCL_ALGO=Tree, NCCL_NVLS_ENABLE=1. Unset that, or leave this out."
    )
    assert environment == {"NCCL_ALGO": "Tree", "NCCL_NVLS_ENABLE": "1"}


def test_exact_mode_outlives_no_thread_whichever_leaves_first() -> None:
    first_in, first_out = threading.Event(), threading.Event()

    def first() -> None:
        with deterministic_algorithms(True):
            first_in.set()
            assert second_in.wait(10)
        first_out.set()

    second_in = threading.Event()
    thread = threading.Thread(target=first)
    thread.start()
    assert first_in.wait(10)
    with deterministic_algorithms(True):
        second_in.set()
        assert first_out.wait(10)
        assert torch.are_deterministic_algorithms_enabled()
    thread.join()
    assert not torch.are_deterministic_algorithms_enabled()
