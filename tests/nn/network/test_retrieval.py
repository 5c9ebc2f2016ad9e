"""Heads and encoders of retrieval: MERU's formula by geoopt, n-grams by hand, the missing extra."""

import math
import sys
import zlib

import geoopt
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fedbolic.manifolds import Curvature, Lorentz
from fedbolic.nn import CentroidPool, EntailmentContrast, LorentzTransformer
from fedbolic.nn.network.retrieval import NGramEncoder, RetrievalHead, SentenceEncoder
from fedbolic.search import HyperbolicIndex


def test_a_head_is_the_exponential_map_of_scaled_features():
    torch.manual_seed(0)
    head = RetrievalHead(Lorentz(c=1.0), 6, 4).double()
    z = torch.randn(7, 6, dtype=torch.float64)
    assert_close(head.log_scale.exp().item(), 0.5, rtol=1e-6, atol=0)  # 1 / sqrt(4)
    tangents = nn.functional.pad(z @ head.linear.weight.T * head.log_scale.exp(), (1, 0))
    expected = geoopt.Lorentz().expmap0(tangents)
    assert_close(head(z), expected, rtol=1e-10, atol=1e-10)


def test_the_scale_is_at_most_one_and_can_fall_again():
    head = RetrievalHead(Lorentz(c=1.0), 3, 3)
    x, bounded = torch.eye(3), []
    for log_scale in (0.0, 2.0):
        head.log_scale.data.fill_(log_scale)
        bounded.append(head(x))
    assert_close(*bounded)
    head.zero_grad()
    head.manifold.dist0(head(x)).sum().backward()
    assert head.log_scale.grad.item() > 0


def test_two_encoders_learn_pairs_in_one_space_with_a_curvature_of_their_own():
    torch.manual_seed(0)
    space = Lorentz(c=Curvature(bounds=(0.1, 10.0)))
    texts = ("red round fruit", "long yellow fruit", "small grey animal", "big grey animal")
    images = nn.Sequential(nn.Linear(4, 16), RetrievalHead(space, 16, 5))
    words = nn.Sequential(NGramEncoder(16, 512), RetrievalHead(space, 16, 5))
    loss = EntailmentContrast()
    modules = nn.ModuleList((images, words, loss))
    assert len({id(p) for p in modules.parameters()}) == len(list(modules.parameters()))
    curvatures = [p for n, p in modules.named_parameters() if "curvature" in n]
    assert len(curvatures) == 1
    optimiser = torch.optim.Adam(modules.parameters(), lr=0.01)
    for _ in range(150):
        optimiser.zero_grad()
        loss(images[1].manifold, images(torch.eye(4)), words(texts)).mean().backward()
        optimiser.step()
    index = HyperbolicIndex.of(images[1].manifold, words(texts))
    assert index.search(images(torch.eye(4)), k=1)[1].flatten().tolist() == [0, 1, 2, 3]


def test_features_of_a_text_are_the_mean_of_the_rows_of_its_grams():
    encoder = NGramEncoder(3, buckets=50, lengths=(3, 4))
    grams = ["<cat>", "<ca", "cat", "at>", "<cat", "cat>", "<of>", "<of", "of>"]
    rows = [zlib.crc32(gram.encode()) % 50 for gram in grams]
    expected = encoder.table.weight[rows].mean(dim=0)
    found = encoder(["Cat of", "", "cat OF"])
    assert_close(found[0], expected)
    assert_close(found[2], expected)
    assert not found[1].any()
    assert encoder([]).shape == (0, 3)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: NGramEncoder(0), "dim must be at least 1"),
        (lambda: NGramEncoder(4, lengths=(3, 2)), "longest must be at least 3, got 2"),
        (lambda: RetrievalHead(Lorentz(c=1.0), 4, 0), "dim must be at least 1"),
    ],
)
def test_sizes_are_checked(make, error):
    with pytest.raises(ValueError, match=error):
        make()


def test_sentence_transformers_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ImportError, match=r"fedbolic\[sentences\]', or use NGramEncoder"):
        SentenceEncoder("all-MiniLM-L6-v2")


class Sentences(nn.Module):
    """The interface of a ``SentenceTransformer``: tokens of texts, then features of tokens."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(256, 4)

    def tokenize(self, texts):
        lengths = torch.tensor([len(text) for text in texts])
        return {"input_ids": lengths, "text": texts}

    def forward(self, batch):
        return {**batch, "sentence_embedding": self.table(batch["input_ids"])}


def test_features_of_sentences_have_gradients():
    model = Sentences()
    features = SentenceEncoder(model)(("a", "four"))
    assert_close(features, model.table.weight[[1, 4]])
    features.sum().backward()
    assert math.isclose(model.table.weight.grad.sum().item(), 8.0)


@pytest.mark.slow
def test_onnx_runtime_gives_the_points_of_an_encoder_and_its_head(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    space = Lorentz(c=Curvature(0.7))
    body = LorentzTransformer(space, 10, 4, num_heads=2, depth=1, rotary_base=1e4)
    encoder = nn.Sequential(body, CentroidPool(space), nn.Linear(5, 6), RetrievalHead(space, 6, 3))
    encoder.eval().requires_grad_(requires_grad=False)
    with torch.no_grad():
        encoder[-1].linear.weight.mul_(20)  # away from the origin
    tokens, file = torch.tensor([[1, 2, 3], [9, 0, 4]]), tmp_path / "encoder.onnx"
    batch = torch.export.Dim("batch")
    torch.onnx.export(
        encoder, (tokens,), file, dynamo=True, dynamic_shapes=({0: batch},), verbose=False
    )
    session = runtime.InferenceSession(file)
    for given in (tokens, tokens.repeat(3, 1)[:5]):
        (found,) = session.run(None, {session.get_inputs()[0].name: given.numpy()})
        assert_close(torch.from_numpy(found), encoder(given), rtol=1e-4, atol=1e-5)
