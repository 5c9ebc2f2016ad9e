"""RowMean against a loop over rows and clients, and what it refuses."""

import pytest
import torch

from fedbolic.federated import RowMean, Update

NUM_ROWS, DIM = 7, 3


def payload(sent, *, seed=0, **changes):
    generator = torch.Generator().manual_seed(seed)
    given = {
        "num_rows": NUM_ROWS,
        "rows": torch.tensor(sent, dtype=torch.int32),
        "values": torch.randn(len(sent), DIM, generator=generator),
        "weights": 1.0 + torch.rand(len(sent), generator=generator),
    }
    return {**given, **changes}


PAYLOADS = [payload([0, 2, 5]), payload([2, 3], seed=1), payload([], seed=2), payload([2], seed=3)]


def aggregate(payloads):
    return RowMean().aggregate((i, Update(each)) for i, each in enumerate(payloads))


def test_each_row_is_the_weighted_mean_over_those_who_sent_it():
    found = aggregate(PAYLOADS).payload
    for row in range(NUM_ROWS):
        total, weight = torch.zeros(DIM), 0.0
        for each in PAYLOADS:
            for place, sent in enumerate(each["rows"].tolist()):
                if sent == row:
                    total = total + each["weights"][place] * each["values"][place]
                    weight += float(each["weights"][place])
        expected = total / weight if weight else total
        torch.testing.assert_close(found["values"][row], expected)
        assert float(found["weights"][row]) == pytest.approx(weight)


def test_a_row_that_nobody_sent_is_zero():
    assert not aggregate(PAYLOADS).payload["values"][[1, 4, 6]].any()


def test_a_row_of_weight_zero_counts_for_nothing():
    silent = payload([1], weights=torch.zeros(1))
    assert not aggregate([silent]).payload["values"].any()
    both = aggregate([PAYLOADS[0], silent]).payload
    torch.testing.assert_close(both, aggregate([PAYLOADS[0]]).payload)


def test_the_weight_of_an_update_has_no_effect():
    weighted = RowMean().aggregate([(0, Update(PAYLOADS[0], 3.0)), (1, Update(PAYLOADS[1], 0.0))])
    torch.testing.assert_close(weighted.payload, aggregate(PAYLOADS[:2]).payload)


def test_all_payloads_share_the_form_of_the_aggregate():
    whole = aggregate(PAYLOADS).payload
    for each in PAYLOADS:
        form = RowMean().form(each)
        assert {n: (x.shape, x.dtype) for n, x in form.items()} == {
            n: (x.shape, x.dtype) for n, x in whole.items()
        }
        assert all(x.device.type == "meta" for x in form.values())


def test_a_valid_payload_has_no_fault():
    assert all(RowMean().find_fault(Update(each)) is None for each in PAYLOADS)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rows": torch.tensor([0, 2, 7], dtype=torch.int32)}, "within 0 .. 6"),
        ({"rows": torch.tensor([-1, 2, 5], dtype=torch.int32)}, "within 0 .. 6"),
        ({"rows": torch.tensor([0, 2, 2], dtype=torch.int32)}, "ascend"),
        ({"rows": torch.tensor([5, 2, 0], dtype=torch.int32)}, "ascend"),
        ({"rows": torch.tensor([0, 2, 5])}, "int32"),
        ({"rows": torch.tensor([0, 2], dtype=torch.int32)}, "2 rows, 3 values"),
        ({"weights": torch.tensor([1.0, -1.0, 1.0])}, "0 or more"),
        ({"weights": torch.ones(3, 1)}, "list"),
        ({"values": torch.ones(3)}, "table"),
        ({"values": 1.0}, "tensors"),
        ({"more": 1.0}, "must hold"),
    ],
)
def test_an_invalid_payload_is_named(changes, reason):
    assert reason in RowMean().find_fault(Update(payload([0, 2, 5], **changes)))
