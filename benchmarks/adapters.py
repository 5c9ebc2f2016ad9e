"""Losses and bytes of federated adapters on a small transformer: ``python -m benchmarks.adapters``.

A character model is trained on the data-set descriptions that come with scikit-learn, which are
prose. Four clients then hold the source of one scikit-learn module each, and adapt the model to
code. Every row has the same step sizes to choose from, by the loss on validation windows.

Takes 6 minutes.
"""

import statistics
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import sklearn
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from benchmarks.results import Figures, Results
from benchmarks.script import parser
from benchmarks.table import difference, head, interval, line
from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params
from fedbolic.data.contract.client import Client, Examples, FederatedData
from fedbolic.federated import Evaluation, Trainer
from fedbolic.federated.contract.gradient_method import LocalTraining
from fedbolic.federated.contract.sharing import Sharing, select_kind
from fedbolic.federated.engines.batched import Batched
from fedbolic.methods import FedAvg
from fedbolic.nn.layers.adapters import AdapterKind
from fedbolic.nn.network.adapted import Adapted
from fedbolic.nn.network.backbone import Backbone
from fedbolic.nn.network.classifier import classifier
from fedbolic.optim import Adam

ROOT = Path(sklearn.__file__).parent
PROSE = "datasets/descr/*.rst"
CODE = (
    "cluster/_kmeans.py",
    "metrics/_classification.py",
    "preprocessing/_data.py",
    "tree/_classes.py",
)
FIRST, LAST = 32, 126
"""Printable ASCII; every other character, a line break above all, is the character after."""

STEP_SIZES = (1e-3, 3e-3, 1e-2, 3e-2)
SPLITS = ("train", "validation", "test")
FLAT = "LoRA and head"
"""Name of the flat twin."""


@dataclass(frozen=True)
class Size:
    """Sizes of the network, the text and the training.

    Args:
        width: Width of the transformer, a multiple of ``heads``.
        heads: Attention heads.
        depth: Transformer blocks.
        context: Characters that the model reads.
        windows: Training windows of a client; validation and test have a quarter each.
        pretraining: Steps on prose.
        rounds: Communication rounds.
        batch_size: Windows of a step.
    """

    width: int = 48
    heads: int = 4
    depth: int = 2
    context: int = 24
    windows: int = 480
    pretraining: int = 800
    rounds: int = 6
    batch_size: int = 40


@dataclass(frozen=True)
class TextRow:
    """One row of the table."""

    kind: AdapterKind
    sharing: Sharing


ROWS = {
    "FedAvg, all weights": TextRow("lora", {"*adapter.*": "fixed", "*": "shared"}),
    "FedAvg, head alone": TextRow("lora", {"head.*": "shared", "*": "fixed"}),
    FLAT: TextRow("lora", {"*adapter.*": "shared", "head.*": "shared", "*": "fixed"}),
    "HypLoRA and head": TextRow(
        "hyplora", {"*adapter.*": "shared", "head.*": "shared", "*": "fixed"}
    ),
}


class CausalBlock(nn.Module):
    """Transformer block with layer norm first, whose projections are separate linear layers."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width, self.heads = size.width, size.heads
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    @override
    def forward(self, x: Tensor) -> Tensor:
        z = self.first_norm(x)
        q, k, v = (
            of(z).unflatten(-1, (self.heads, -1)).transpose(-2, -3)
            for of in (self.query, self.key, self.value)
        )
        scores = q @ k.mT / q.shape[-1] ** 0.5
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        seen = scores.masked_fill(ahead, -torch.inf).softmax(-1) @ v
        x = x + self.out(seen.transpose(-2, -3).flatten(-2))
        return x + self.narrow(nn.functional.gelu(self.widen(self.second_norm(x))))


class CharacterTransformer(nn.Module):
    """Features of the last character of a window."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.characters = nn.Embedding(LAST - FIRST + 2, size.width)
        self.places = nn.Parameter(torch.randn(size.context, size.width) / size.width**0.5)
        self.blocks = nn.Sequential(*(CausalBlock(size) for _ in range(size.depth)))
        self.norm = nn.LayerNorm(size.width)

    @override
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.blocks(self.characters(x.long()) + self.places))[..., -1, :]


@dataclass(frozen=True)
class Characters(Backbone):
    """Configuration of the transformer."""

    size: Size

    @property
    @override
    def num_features(self) -> int:
        return self.size.width

    @override
    def build(self, meta: Meta) -> nn.Module:
        return CharacterTransformer(self.size)


def encode_text(text: str) -> Tensor:
    r"""Numbers of characters.

    Example:
        >>> encode_text(" a\n").tolist()
        [0, 65, 95]
    """
    codes = torch.tensor([ord(character) for character in text])
    return torch.where((codes >= FIRST) & (codes <= LAST), codes - FIRST, LAST - FIRST + 1)


def windows(text: Tensor, num: int, context: int, rng: Rng) -> Examples:
    """Random windows of a text, each with the character that follows."""
    start = torch.randint(len(text) - context, (num, 1), generator=rng.generator())
    rows = text[start + torch.arange(context + 1)]
    return Examples({"x": rows[:, :-1].float(), "y": rows[:, -1]})


def federation(size: Size, rng: Rng) -> FederatedData:
    """Clients with the source of one module each: the last quarters are validation and test."""
    meta = Meta(LAST - FIRST + 2, (size.context,), len(CODE))
    clients = []
    for i, name in enumerate(CODE):
        text = encode_text((ROOT / name).read_text())
        parts = text.tensor_split([len(text) // 2, 3 * len(text) // 4])
        counts = (size.windows, size.windows // 4, size.windows // 4)
        splits = [
            windows(part, count, size.context, rng.at("windows", i, split))
            for part, count, split in zip(parts, counts, SPLITS, strict=True)
        ]
        clients.append(Client(i, *splits, meta=meta))
    return FederatedData(tuple(clients), meta)


def pretrain(size: Size, meta: Meta, rng: Rng) -> Params:
    """Parameters of the transformer and its head, trained on the prose."""
    files = sorted(ROOT.glob(PROSE))
    text = encode_text("\n".join(file.read_text() for file in files))
    examples = windows(text, size.pretraining * size.batch_size, size.context, rng.at("prose"))
    model, method = classifier(Characters(size), meta), Adam()
    parameters, _ = model.init(rng.at("start").number())
    state = method.init(parameters)
    for batch in torch.arange(len(examples)).split(size.batch_size):
        rows = examples.at(batch)
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        loss = cross_entropy(model(leaves, {}, rows["x"], training=True)[0], rows["y"])
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        with torch.no_grad():
            named = dict(zip(leaves, gradients, strict=True))
            parameters, state = method.step(parameters, named, state, lr=2e-3)
    return parameters


def adapt(of: TextRow, trained: Params, data: FederatedData, size: Size, lr: float) -> Figures:
    """Losses after a federation that starts from pretrained weights, and what it sent."""
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder, "body.pt")
        torch.save(tree.part(trained, "body."), weights)
        method = FedAvg(
            Adapted(Characters(size), weights, rank=4, kind=of.kind),
            rounds=max(size.rounds, 1),
            local=LocalTraining(epochs=1, batch_size=size.batch_size),
            lr=lr,
            optimizer=Adam(),
            sharing=of.sharing,
        )
        trainer = Trainer(Batched(), evaluation=Evaluation(every=max(size.rounds, 1)))
        state = trainer.begin(method, data, Rng(0))
        start = state.server_state["parameters"]
        head = {name: trained[name] for name in start if name.startswith("head.")}
        state = replace(state, server_state={**state.server_state, "parameters": start | head})
        up = 0.0
        if size.rounds:
            exchanges = list(trainer.run(method, data, Rng(0), state))
            state = exchanges[-1][0]
            every = [row for _, rows in exchanges for row in rows if row.name == "bytes/up"]
            up = sum(row.value for row in every) / len(data.clients)
        sent = select_kind(state.server_state["parameters"], of.sharing, "shared")
        numbers = sum(value.numel() for value in sent.values())
        losses = {
            f"{split} loss": mean_loss(method, state.server_state, data, split) for split in SPLITS
        }
        return {**losses, "kB up": up / 1000, "numbers sent": numbers}


def mean_loss(method: FedAvg, server_state: dict, data: FederatedData, split: str) -> float:
    """Mean cross entropy of the next character over all windows of a split, in nats."""
    total, count = 0.0, 0
    for client in data.clients:
        rows = getattr(client, split).all()
        message = method.broadcast(server_state, client.id)
        local, context = method.start(message, client, {})
        with torch.no_grad():
            logits = method.predict(method.model(data.meta), local, rows, context)
        total += cross_entropy(logits, rows["y"], reduction="sum").item()
        count += len(rows["y"])
    return total / count


def main() -> None:
    """Pretrain, adapt with every row, seed and step size, and print the table."""
    args = parser(__doc__, "adapters.csv")
    args.add_argument("--seeds", type=int, default=3, help="seeds of every row, from 0")
    args.add_argument("--rows", nargs="+", default=[""], help="parts of names of rows")
    given = args.parse_args()
    results, size = Results(given.results), Size()
    rows = {n: row for n, row in ROWS.items() if any(part in n for part in given.rows)}
    chosen: dict[str, list[Figures]] = {}
    for seed in range(given.seeds):
        rng = Rng(seed)
        data = federation(size, rng.at("text"))
        trained = pretrain(size, data.meta, rng.at("pretraining"))
        untrained = ("before", "", str(seed))
        still = replace(size, rounds=0)
        row = ROWS["FedAvg, head alone"]
        found = results.add(untrained, adapt, row, trained, data, still, 1.0)
        chosen.setdefault("before", []).append({**found, "numbers sent": 0})
        for name, row in rows.items():
            tries = [
                results.add((name, str(lr), str(seed)), adapt, row, trained, data, size, lr)
                for lr in STEP_SIZES
            ]
            best = min(tries, key=lambda figures: figures["validation loss"])
            chosen.setdefault(name, []).append(best)
    print_table(chosen)


def print_table(chosen: dict[str, list[Figures]]) -> None:
    """Print one line for each row, and its paired differences from LoRA."""
    columns = ("test loss", "less LoRA (standard error)", "kB up", "numbers sent", "CPU s")
    print(f"\n{head('', *columns)}")
    flat = [figures["test loss"] for figures in chosen.get(FLAT, [])]
    for name, found in chosen.items():
        losses = [figures["test loss"] for figures in found]
        compared = name != FLAT and len(losses) == len(flat) > 1
        paired = difference(losses, flat, 3) if compared else ""
        cpu = statistics.fmean(figures["seconds"] for figures in found)
        sent = (f"{found[0][of]:,.0f}" for of in ("kB up", "numbers sent"))
        print(line(name, interval(losses), paired, *sent, f"{cpu:.0f}"))


if __name__ == "__main__":
    main()
