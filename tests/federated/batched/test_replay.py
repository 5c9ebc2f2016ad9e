"""Captures on simulated CUDA devices: streams, threads, failures, and graphs that do nothing."""

import threading

import pytest
import torch

from fedbolic.federated.batched import replay
from fedbolic.federated.batched.replay import GraphPool, Replay
from tests.rehearsal import CAPTURES, CUDA, in_thread, rehearsal


@pytest.mark.parametrize("place", ["cuda:0", "cuda:1"])
def test_a_graph_is_of_the_device_of_its_tensors_whichever_is_current(place):
    with rehearsal(devices=2):
        GraphPool(CUDA)  # torch would keep the stream of this device for all others
        x = torch.zeros(1).to(place)
        add = Replay(lambda: x.add_(1), x, GraphPool(x.device))
        for i in range(4):
            add()
            assert x.item() == i + 1


def test_a_graph_that_does_nothing_is_an_error():
    with rehearsal():
        x = torch.zeros(1).to(CUDA)
        still = Replay(lambda: torch.zeros(1, device=CUDA), x, GraphPool(CUDA))
        still()
        with pytest.raises(RuntimeError, match="does nothing"):
            still()


def test_a_failed_capture_leaves_the_stream_of_before():
    with rehearsal():
        x, pool = torch.zeros(1).to(CUDA), GraphPool(CUDA)
        before = torch.cuda.current_stream(CUDA)
        caches = torch.is_autocast_cache_enabled()
        with pytest.raises(RuntimeError, match="capturing"):
            pool.captured(lambda: x.add_(x.item()))
        assert torch.cuda.current_stream(CUDA) is before
        assert torch.is_autocast_cache_enabled() == caches
        assert not CAPTURES
        pool.captured(lambda: x.add_(1)).replay()
        assert x.item() == 1


def test_threads_capture_one_after_another():
    failures, inside, waiting = [], threading.Event(), threading.Event()

    def in_another_thread(device):
        try:
            with in_thread(device):
                waiting.set()
                x = torch.zeros(1).to("cuda:1")
                GraphPool(x.device).captured(lambda: x.add_(1)).replay()
                assert inside.is_set()
                assert x.item() == 1
        except BaseException as error:
            failures.append(error)

    with rehearsal(devices=2) as device:
        x, pool = torch.zeros(1).to(CUDA), GraphPool(CUDA)
        thread = threading.Thread(target=in_another_thread, args=(device,))

        def slow():
            thread.start()
            waiting.wait(10)
            thread.join(0.05)  # it would capture now if it were not for the lock
            assert replay._CAPTURING.locked()
            x.add_(1)
            inside.set()

        pool.captured(slow).replay()
        thread.join(10)
        assert x.item() == 1
    assert not failures
