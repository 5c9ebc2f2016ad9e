"""The benchmark of transformers: equal sizes, equal tries, a text without a look ahead."""

import pytest
import torch

from benchmarks.results import Results
from benchmarks.twins import transformers as twins


@pytest.fixture
def text(monkeypatch):
    """A task of four steps on the first characters of the text."""
    monkeypatch.setattr(twins, "STEPS", 4)
    monkeypatch.setattr(twins, "SEEDS", range(2))
    monkeypatch.setattr(twins, "NETWORKS", ("flat", "hyperbolic"))
    task = twins.TextTask()
    task.train = task.train[:2000]
    task.parts = {name: part[:2000] for name, part in task.parts.items()}
    return task


def test_parts_of_the_text_do_not_overlap_and_every_character_has_a_number():
    task = twins.TextTask()
    whole = torch.cat((task.train, task.parts["validation"], task.parts["test"]))
    assert torch.equal(whole, twins.characters()[0])
    assert whole.unique().tolist() == list(range(task.num_tokens))
    assert len(task.train) > 400_000


@pytest.mark.parametrize("build", [lambda n: twins.language_model(n, 100), twins.vit])
def test_networks_have_as_many_parameters(build):
    sizes = [sum(p.numel() for p in build(n).parameters()) for n in twins.NETWORKS]
    assert max(sizes) / min(sizes) < 1.005


@pytest.mark.parametrize("network", twins.NETWORKS)
def test_no_network_looks_ahead(network):
    torch.manual_seed(0)
    model, x = twins.language_model(network, 10), torch.randint(10, (2, 12))
    other = x.clone()
    other[:, 8:] = 0
    torch.testing.assert_close(model(other)[:, :8], model(x)[:, :8])
    assert not torch.allclose(model(other)[:, 8:], model(x)[:, 8:])


def test_bits_of_a_uniform_answer_are_those_of_the_alphabet(text):
    class Uniform(torch.nn.Module):
        def forward(self, x):
            return torch.zeros(*x.shape, text.num_tokens)

    expected = torch.tensor(float(text.num_tokens)).log2().item()
    assert text.figure(Uniform(), "test") == pytest.approx(expected)


def test_a_run_prints_a_row_each_and_goes_on_where_it_stopped(text, tmp_path, capsys):
    results = Results(tmp_path / "twins.csv", quiet=True)
    twins.compare(text, results)
    rows = capsys.readouterr().out.splitlines()[-2:]
    assert [row.split(" | ")[0] for row in rows] == ["| flat", "| hyperbolic"]
    kept = (tmp_path / "twins.csv").read_text()
    twins.compare(text, Results(tmp_path / "twins.csv", quiet=True))
    assert capsys.readouterr().out.splitlines()[-2:] == rows
    assert (tmp_path / "twins.csv").read_text() == kept
