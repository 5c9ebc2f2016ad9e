"""Adapters' benchmark: text, windows, what each row sends, and a causal transformer."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from benchmarks import adapters
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta

SMALL = adapters.Size(
    width=8, heads=2, depth=1, context=6, windows=8, pretraining=2, rounds=1, batch_size=4
)
META = Meta(adapters.LAST - adapters.FIRST + 2, (SMALL.context,), 1)


def test_a_window_is_followed_by_its_label():
    text = torch.arange(50)
    rows = adapters.windows(text, 20, 6, Rng(0)).all()
    start = rows["x"][:, :1].long()
    assert torch.equal(rows["x"].long(), start + torch.arange(6))
    assert torch.equal(rows["y"], start.squeeze(1) + 6)


def test_texts_of_the_splits_do_not_overlap():
    data = adapters.federation(SMALL, Rng(0))
    assert data.meta.num_clients == len(adapters.CODE)
    for client in data.clients:
        assert (len(client.train), len(client.validation), len(client.test)) == (8, 2, 2)
    sizes = [(adapters.ROOT / name).stat().st_size for name in adapters.CODE]
    assert min(sizes) > 50_000  # long enough for windows that hardly repeat


def test_every_block_sees_the_past_alone():
    torch.manual_seed(0)
    block, x = adapters.CausalBlock(SMALL), torch.randn(2, 6, 8)
    later = x.clone()
    later[:, 4:] = 0.0
    torch.testing.assert_close(block(later)[:, :4], block(x)[:, :4])


def test_attention_is_that_of_torch():
    torch.manual_seed(0)
    block, x = adapters.CausalBlock(SMALL), torch.randn(2, 6, 8)
    z = block.first_norm(x)
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    parts = (block.query, block.key, block.value)
    seen, _ = nn.functional.multi_head_attention_forward(
        *(z.transpose(0, 1),) * 3,
        8,
        2,
        torch.cat([of.weight for of in parts]),
        torch.cat([of.bias for of in parts]),
        None,
        None,
        False,
        0.0,
        block.out.weight,
        block.out.bias,
        attn_mask=mask,
    )
    between = x + seen.transpose(0, 1)
    wide = nn.functional.gelu(block.widen(block.second_norm(between)))
    torch.testing.assert_close(block(x), between + block.narrow(wide))


@pytest.fixture(scope="module")
def start():
    data = adapters.federation(SMALL, Rng(0))
    return data, adapters.pretrain(SMALL, data.meta, Rng(0))


def test_every_row_starts_from_the_pretrained_model(start):
    data, trained = start
    still = replace(SMALL, rounds=0)
    found = [adapters.adapt(row, trained, data, still, 0.01) for row in adapters.ROWS.values()]
    losses = torch.tensor([[figures[f"{s} loss"] for s in adapters.SPLITS] for figures in found])
    torch.testing.assert_close(losses, losses[:1].expand_as(losses))


@pytest.mark.parametrize("name", adapters.ROWS)
def test_a_row_sends_what_its_table_says(name, start):
    data, trained = start
    found = adapters.adapt(adapters.ROWS[name], trained, data, SMALL, 0.01)
    head = 8 * 96 + 96
    matrices = 4 * (8 + 8) * 4 + 2 * (8 + 32) * 4  # four projections, two of the MLP, rank 4
    expected = {
        "FedAvg, all weights": sum(value.numel() for value in trained.values()),
        "FedAvg, head alone": head,
    }.get(name, head + matrices)
    assert found["numbers sent"] == expected
    assert found["kB up"] == pytest.approx(4 * expected / 1000, rel=0.01)
