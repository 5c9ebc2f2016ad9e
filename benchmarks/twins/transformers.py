"""Transformers of points, of tangents, and flat ones with as many parameters: a text, and images.

Tables of ``benchmarks.twins``. A language model reads the characters of ``pydoc_data.topics``,
which comes with Python: the last tenth is half validation, half test. A ViT classifies the images
of ``image_twins``. Each network chooses the step size of Adam from the same grid on validation with
seed 0; then three seeds run with it. What the layers of points start with was chosen in about 30
tries on the images, so the flat ViT chooses among 32: eight starts with each step size.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product, starmap
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from typing_extensions import override

from benchmarks.results import Figures, Results
from benchmarks.table import difference, head, line, spread
from benchmarks.twins import images as image_twins
from fedbolic.core.rng import Rng
from fedbolic.manifolds import Lorentz
from fedbolic.nn import LorentzTransformer, LorentzViT
from fedbolic.nn.transformer.rotary import rotated

DIM, HEADS, DEPTH, HIDDEN, FLAT_HIDDEN = 64, 4, 2, 256, 261
"""Sizes; the hidden layer of the flat twin has a few more numbers in place of time columns."""

CONTEXT, WINDOWS, STEPS = 64, 16, 300
IMAGE, PATCH, EPOCHS = 32, 8, 2
SEEDS = range(3)
NETWORKS = "flat", "hybrid", "hyperbolic"


@dataclass(frozen=True)
class Start:
    """Choices for the flat ViT: the place of its last norm, and what its parameters start with."""

    norm_last: bool = False
    positions: float = 1.0
    branches: float = 1.0


class FlatBlock(nn.Module):
    """The block of flat space with as many parameters: norms first, learnt weights of branches."""

    def __init__(self, base: float | None, branches: float = 1.0) -> None:
        super().__init__()
        self.base = base
        self.norms = nn.ModuleList(nn.RMSNorm(DIM, eps=1e-5) for _ in range(2))
        self.query, self.key, self.value, self.out = (nn.Linear(DIM, DIM) for _ in range(4))
        self.up, self.down = nn.Linear(DIM, FLAT_HIDDEN), nn.Linear(FLAT_HIDDEN, DIM)
        self.log_weights = nn.Parameter(torch.full((2,), math.log(branches)))

    @override
    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[0](x)
        query, key, value = (
            of(h).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for of in (self.query, self.key, self.value)
        )
        if self.base is not None:
            query, key = rotated(query, self.base), rotated(key, self.base)
        seen = scaled_dot_product_attention(query, key, value, is_causal=self.base is not None)
        weights = self.log_weights.exp()
        x = x + weights[0] * self.out(seen.transpose(1, 2).flatten(-2))
        return x + weights[1] * self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class FlatViT(nn.Module):
    """The flat twin of ``LorentzViT``."""

    def __init__(self, start: Start) -> None:
        super().__init__()
        self.norm_last = start.norm_last
        self.patches = nn.Conv2d(3, DIM, PATCH, stride=PATCH)
        self.positions = nn.Parameter(start.positions * torch.randn((IMAGE // PATCH) ** 2, DIM))
        self.blocks = nn.Sequential(*(FlatBlock(None, start.branches) for _ in range(DEPTH)))
        self.norm, self.head = nn.RMSNorm(DIM, eps=1e-5), nn.Linear(DIM, image_twins.CLASSES)

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.patches(x).flatten(-2).mT + self.positions)
        return self.head(self.norm(x.mean(-2)) if self.norm_last else self.norm(x).mean(-2))


def language_model(network: str, num_tokens: int) -> nn.Module:
    """A causal transformer with a head for the next character."""
    if network == "flat":
        blocks = (FlatBlock(1e4) for _ in range(DEPTH))
        norm = nn.RMSNorm(DIM, eps=1e-5)
        table = nn.Embedding(num_tokens, DIM)
        return nn.Sequential(table, *blocks, norm, nn.Linear(DIM, num_tokens))
    stream = "tangents" if network == "hybrid" else "points"
    body = LorentzTransformer(
        Lorentz(),
        num_tokens,
        DIM,
        HEADS,
        DEPTH,
        causal=True,
        hidden_dim=hidden(network),
        stream=stream,
    )
    return nn.Sequential(body, nn.Linear(DIM + 1, num_tokens))


def vit(network: str, start: Start = Start()) -> nn.Module:
    """A vision transformer with its head."""
    if network == "flat":
        return FlatViT(start)
    stream = "tangents" if network == "hybrid" else "points"
    sizes = IMAGE, PATCH, DIM, HEADS, DEPTH, image_twins.CLASSES
    return LorentzViT(Lorentz(), *sizes, hidden_dim=hidden(network), stream=stream)


def hidden(network: str) -> int:
    """Hidden dimensions of a network."""
    return FLAT_HIDDEN if network == "hybrid" else HIDDEN


def characters() -> tuple[Tensor, int]:
    """The text as indices of its characters, and how many there are."""
    text = "\n".join(topics[name] for name in sorted(topics))
    names = {c: i for i, c in enumerate(sorted(set(text)))}
    return torch.tensor([names[c] for c in text]), len(names)


class TextTask:
    """Bits per character of the next of 64 characters, given the ones before it."""

    title, measure = "characters", "bits per character"
    grid = 3e-3, 1e-2, 3e-2
    sign = 1

    def __init__(self) -> None:
        self.text, self.num_tokens = characters()
        first, second = len(self.text) * 9 // 10, len(self.text) * 19 // 20
        self.train = self.text[:first]
        self.parts = {"validation": self.text[first:second], "test": self.text[second:]}
        self.steps = STEPS

    def starts(self, network: str) -> tuple[Start, ...]:
        """Choices besides the step size."""
        del network
        return (Start(),)

    def build(self, network: str, start: Start) -> nn.Module:
        """A newly initialised network."""
        del start
        return language_model(network, self.num_tokens)

    def losses(self, model: nn.Module, generator: torch.Generator) -> Iterator[Tensor]:
        """The loss of every step, on random windows."""
        last = len(self.train) - CONTEXT
        for _ in range(self.steps):
            start = torch.randint(last, (WINDOWS, 1), generator=generator)
            yield self.loss(model, self.train[start + torch.arange(CONTEXT + 1)])

    @staticmethod
    def loss(model: nn.Module, windows: Tensor) -> Tensor:
        """Mean cross entropy of all next characters."""
        logits = model(windows[:, :-1])
        return cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())

    def figure(self, model: nn.Module, part: str) -> float:
        """Bits per character on consecutive windows of a part."""
        windows = self.parts[part].unfold(0, CONTEXT + 1, CONTEXT)
        total = sum(float(self.loss(model, x)) * len(x) for x in windows.split(64))
        return total / len(windows) / math.log(2)


class PatchTask:
    """Accuracy of a ViT, whose head is linear in every network."""

    title, measure = "images", "accuracy %"
    grid = 3e-4, 1e-3, 3e-3, 1e-2
    sign = -1

    def __init__(self) -> None:
        self.data = image_twins.load()
        self.steps = EPOCHS * (len(self.data.train[0]) // image_twins.BATCH)

    def starts(self, network: str) -> tuple[Start, ...]:
        """Choices besides the step size."""
        if network != "flat":
            return (Start(),)
        return tuple(starmap(Start, product((False, True), (1.0, 0.3), (1.0, 0.3))))

    def build(self, network: str, start: Start) -> nn.Module:
        """A newly initialised network."""
        return vit(network, start)

    def losses(self, model: nn.Module, generator: torch.Generator) -> Iterator[Tensor]:
        """The loss of every step."""
        for _ in range(EPOCHS):
            for x, y in image_twins.batches(self.data.train, generator):
                yield cross_entropy(model(x), y)

    def figure(self, model: nn.Module, part: str) -> float:
        """Accuracy in percent on a part."""
        return image_twins.accuracy(model, getattr(self.data, part))


Task = TextTask | PatchTask
TASKS: dict[str, Callable[[], Task]] = {"characters": TextTask, "vit": PatchTask}


def made(task: Task, network: str, start: Start, seed: int) -> nn.Module:
    """A network of a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(Rng(seed).at("init").number())
        return task.build(network, start)


def figures(task: Task, network: str, start: Start, *, lr: float, seed: int) -> Figures:
    """Figures of a trained network: Adam, a step size that falls to 0, clipped gradients."""
    model = made(task, network, start, seed)
    adam = torch.optim.Adam(model.parameters(), lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, task.steps)
    for loss in task.losses(model, Rng(seed).at("order").generator()):
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        schedule.step()
    model.eval().requires_grad_(False)
    return {part: task.figure(model, part) for part in ("validation", "test")}


def compare(task: Task, results: Results) -> None:
    """Choose step sizes, run all seeds and print the table, each row as soon as it is computed."""
    print(f"\n**{task.title}**, {task.steps} steps\n")
    print(head("network", "parameters", task.measure, "minus flat", "step size"), flush=True)
    reference: list[float] = []
    for network in NETWORKS:

        def of(start: Start, lr: float, seed: int, network: str = network) -> Figures:
            key = task.title, network, str(start), str(lr), str(seed)
            return results.add(key, partial(figures, task, network, start, lr=lr, seed=seed))

        tries = [*product(task.starts(network), task.grid)]
        chosen = min(tries, key=lambda way: task.sign * of(*way, SEEDS[0])["validation"])
        test = [of(*chosen, seed)["test"] for seed in SEEDS]
        reference = reference or test
        gap = "" if test is reference else difference(test, reference)
        start, lr = chosen
        size = sum(p.numel() for p in made(task, network, start, 0).parameters())
        choice = f"{lr}, {start}" if len(tries) > len(task.grid) else lr
        print(line(network, f"{size:,}", spread(test), gap, choice), flush=True)
