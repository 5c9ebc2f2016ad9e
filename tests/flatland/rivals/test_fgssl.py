"""Refusals of FGSSL, its case of federated averaging, and the parts of its views."""

import pytest
import torch

from flatland import GCN, ContrastedGCN, Fgssl, FlatLand
from flatland.graphs.blocks import graph_block
from flatland.rivals.fgssl import View, contrasts, relation_gap
from tests.conformance.loop import gap
from tests.federated.simple_method import RNG, train
from tests.flatland.cases import complete, federation, graph_of


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ContrastedGCN(weak_edges=1.0), "weak_edges"),
        (lambda: ContrastedGCN(strong_features=-0.1), "strong_features"),
        (lambda: ContrastedGCN(relation_temperature=0.001), "relation_temperature"),
        (lambda: Fgssl(contrast=-1.0), "contrast"),
        (lambda: Fgssl(temperature=0.0), "temperature"),
        (lambda: Fgssl(sharing={"*": "shared"}), "sharing"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_without_both_terms_it_is_federated_averaging():
    settings = {"rounds": 2, "proximal": 0.0}
    network = ContrastedGCN((4,), dropout=0.0)
    method = Fgssl(network, contrast=0.0, distillation=0.0, **settings)
    plain = FlatLand(GCN((4,), dropout=0.0), sharing={"*": "shared"}, **settings)
    ours, theirs = (train(one, federation(), RNG)[0][-1].server_state for one in (method, plain))
    assert gap(ours["parameters"], theirs["parameters"]) < 1e-12


def test_a_view_lacks_its_share_of_edges_in_both_directions():
    block = graph_block((graph_of(complete(60), 60, dim=400),))
    view = View(0.8, 0.5, 400)
    view.dropout_seed = torch.tensor(3)
    found = view(block)
    left = torch.zeros(60, 60)
    matrix = found.symmetric
    left[matrix.row, matrix.column.long()] = (matrix.value > 0).float()
    assert torch.equal(left, left.T)
    assert left.diagonal().all()
    num_pairs, deviation = 60 * 59 // 2, (0.8 * 0.2) ** 0.5
    share = float(left.triu(1).sum()) / num_pairs
    assert share == pytest.approx(0.2, abs=6 * deviation / num_pairs**0.5)
    assert float(found.taken.double().mean()) == pytest.approx(0.5, abs=6 * 0.5 / 400**0.5)
    assert not torch.equal(view(block).taken, found.taken)  # another view in every pass


def test_nodes_that_are_masked_change_no_contrast():
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (torch.randn(6, 3, generator=generator).double() for _ in range(2))
    y, mask = torch.tensor([0, 0, 1, 1, 1, 0]), torch.arange(6) < 4
    alone = contrasts(ours[:4], theirs[:4], y[:4], mask[:4], 0.5)
    assert torch.allclose(contrasts(ours, theirs, y, mask, 0.5)[:4], alone)


def test_one_class_and_zero_features_have_finite_gradients():
    ours = torch.zeros(3, 2, requires_grad=True)
    y, mask = torch.zeros(3, dtype=torch.int64), torch.ones(3, dtype=torch.bool)
    loss = contrasts(ours, torch.ones(3, 2), y, mask, 0.5).sum()
    (gradient,) = torch.autograd.grad(loss, ours)
    assert loss.item() == 0.0
    assert gradient.isfinite().all()


def test_lonely_nodes_have_no_relations_and_finite_gradients():
    block = graph_block((graph_of([], 3), graph_of(complete(3), 3)))
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (torch.randn(2, 3, 4, generator=generator) for _ in range(2))
    ours[0, 0] = 0.0
    gap = relation_gap(ours.requires_grad_(), theirs, block, 0.025)
    (gradient,) = torch.autograd.grad(gap.sum(), ours)
    assert gap[0].item() == 0.0
    assert gap[1].item() > 0.0
    assert gradient.isfinite().all()
