"""Cost of a secure sum by exchange and cohort size, and for the methods of this library.

Takes 1 minute.
"""

import argparse
import math
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from typing_extensions import override

from benchmarks.script import parser
from benchmarks.table import head, line
from benchmarks.timing import Clock
from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Tree
from fedbolic.data import Client, Digits, Dirichlet, Examples, Partitioned, Points, Source
from fedbolic.data.points import ClassRuns
from fedbolic.federated import AggregatedUpdate, Aggregator, Method, SumModulo, Trainer, Update
from fedbolic.federated.aggregators.modular import LIMB, from_limbs, num_limbs
from fedbolic.federated.contract.capabilities import Ordered
from fedbolic.federated.secure import NeighbourGraph, SecureSum, keys
from fedbolic.federated.secure.neighbours import DrawnGraph
from fedbolic.federated.secure.preparation import CIPHERTEXT_BYTES, ciphertext_key
from fedbolic.federated.secure.roster import Roster, listed_ids, make_card, to_bytes, to_tensor
from fedbolic.federated.secure.shamir import SHARE_BYTES
from fedbolic.methods import FedAvg
from fedhull import FedHull, HyperbolicBoundary, PolarGrid, Spectral
from flynn import FlyNN

RNG = Rng(0)


@dataclass(frozen=True)
class Row(Method):
    """Every client sends a vector of numbers and does nothing else."""

    length: int
    modulus: int
    rounds: int = 1

    @property
    @override
    def aggregator(self) -> Aggregator:  # type: ignore[override]  # by a setting
        return SumModulo(self.modulus)

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        return {}

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        return Update({"values": self.values(client.id)}), {}

    def values(self, client_id: int) -> torch.Tensor:
        """The numbers of a client, as limbs."""
        generator, places = RNG.at("row", client_id).generator(), num_limbs(self.modulus)
        limbs = torch.randint(2**LIMB, (self.length, places), generator=generator)
        limbs[:, -1] %= max(self.modulus >> LIMB * (places - 1), 1)
        return limbs

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        return {"values": total.payload["values"]}

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        return {}


@dataclass(frozen=True)
class Step:
    """Cost of one exchange at one client."""

    seconds: float
    up: int
    down: int


def federation(num_clients: int) -> list[Client]:
    """Clients with one example each."""
    meta = Meta(2, (1,), num_clients)
    one = Examples({"x": torch.zeros(1, 1), "y": torch.zeros(1, dtype=torch.int64)})
    return [Client(i, one, one, one, meta) for i in range(num_clients)]


class Party:
    """One client whose work is measured, exchange by exchange."""

    def __init__(self, secure: SecureSum, client: Client) -> None:
        self.secure, self.client = secure, client
        self.client_state: Tree = {}
        self.steps: dict[str, Step] = {}

    def reply(self, message: Tree) -> Update:
        """The client's measured reply."""
        clock = Clock()
        update, self.client_state = self.secure.local_update(
            message, self.client, self.client_state, RNG
        )
        spent = clock.lap()
        sizes = tree.num_bytes(update.payload), tree.num_bytes(message)
        self.steps[message["stage"]] = Step(spent, *sizes)
        return update


def one_among(secure: SecureSum, lost: int, clients: list[Client], own: int) -> dict[str, Step]:
    """Steps of one client of a cohort; of the others, only the messages to it are computed."""
    party, everybody = Party(secure, clients[own]), tuple(range(len(clients)))
    card = party.reply({"stage": "cards", "session": 1}).payload
    ciphers = [keys.new_secret() for _ in everybody]
    signers = [
        keys.new_secret() if secure.keys is None else keys.read_secret(secure.keys, i)
        for i in everybody
    ]
    cards = [
        make_card(1, i, cipher=ciphers[i], mask=keys.new_secret(), signer=signers[i])
        for i in everybody
    ]
    cards[own] = to_bytes(card["card"])
    plan, graph = secure.plan(len(clients)), None
    if plan is not None:
        draws = {i: keys.new_secret() for i in everybody} | {own: to_bytes(card["draw"])}
        graph = DrawnGraph(len(clients), plan.degree, draws)
    roster = Roster(1, everybody, tuple(cards), graph)
    server_state = {"stage": "shares", "roster": roster.tree(), "num_clients": len(clients)}
    party.reply(secure.phase(server_state).broadcast(server_state, own))
    ciphertexts = [bytes(CIPHERTEXT_BYTES) if i == own else sealed(roster, i, ciphers[i], own)
                   for i in roster.senders(own)]  # fmt: skip
    rows = to_tensor(b"".join(ciphertexts)).reshape(-1, CIPHERTEXT_BYTES)
    sharers = {"sharers": listed_ids(everybody, roster), "ciphertexts": rows}
    answer = party.reply({"stage": "sums", "turn": 0, "inner": {}, **sharers})
    ids = [i for i in everybody if i < len(clients) - lost or i == own]
    survivors = {"survivors": listed_ids(ids, roster), "broadcast": answer.payload["broadcast"]}
    mine = party.reply({"stage": "survivors", "survivors": survivors["survivors"]})
    signatures = torch.stack([
        mine.payload["signature"] if i == own
        else roster.signed("survivors", i, survivors, signer=signers[i])["signature"]
        for i in ids
    ])  # fmt: skip
    server_state |= {"witnesses": listed_ids(ids, roster), "signatures": signatures}
    server_state |= {"stage": "unmasking"}
    if graph is not None:
        server_state |= {"stage": "witnesses"}
        sample = party.reply(secure.phase(server_state).broadcast(server_state, own))
        samples = {str(own): sample.payload["sample"]}
        server_state |= {"stage": "unmasking", "samples": samples}
    party.reply(secure.phase(server_state).broadcast(server_state, own))
    return party.steps


def sealed(roster: Roster, sender: int, cipher: bytes, receiver: int) -> bytes:
    """Shares of one client for another."""
    common = keys.Agreement(cipher).with_party(roster.cipher_key(receiver))
    key = ciphertext_key(roster, common, sender=sender, receiver=receiver)
    return keys.seal(key, bytes(2 * SHARE_BYTES))


def whole(secure: SecureSum, method: Row, lost: int, clients: list[Client]) -> float:
    """CPU seconds of the server in a sum of all clients, whose result is checked."""
    spent = 0.0
    parties = [Party(secure, client) for client in clients]
    server_state = secure.init(clients[0].meta, RNG)
    while "inner" not in server_state or not server_state["inner"]:
        phase = secure.phase(server_state)
        if phase.stage == "sums":
            parties = parties[: len(clients) - lost]
        updates = [
            (party.client.id, party.reply(phase.broadcast(server_state, party.client.id)))
            for party in parties
        ]
        clock = Clock()
        server_state = phase.server_update(server_state, phase.aggregator.aggregate(updates))
        spent += clock.lap()
    columns = zip(*(from_limbs(method.values(p.client.id)) for p in parties), strict=True)
    if from_limbs(server_state["inner"]["values"]) != [sum(c) % method.modulus for c in columns]:
        raise AssertionError("the secure sum is not the sum")
    return spent


def report(num_clients: int, found: list[dict[str, Step]]) -> None:
    """Print one cohort: medians over the measured clients, exchange by exchange."""
    totals = [0.0, 0, 0]
    for stage in found[0]:
        steps = [steps[stage] for steps in found]
        row = (1000 * statistics.median(s.seconds for s in steps), steps[0].up, steps[0].down)
        totals = [a + b for a, b in zip(totals, row, strict=True)]
        print(line(num_clients, stage, f"{row[0]:.1f}", f"{row[1]:,}", f"{row[2]:,}"))
    last = f"{totals[0]:.1f}", f"{totals[1]:,}", f"{totals[2]:,}"
    print(line(num_clients, "together", *last), flush=True)


def compare(name: str, method: Method, secure: SecureSum, source: Source) -> None:
    """Run a method with and without masks; compare the final states and print the costs."""
    data = source.load(RNG).to("cpu", torch.float64)
    costs, states = [], []
    for run in (method, secure):
        clock = Clock()
        *_, (state, rows) = Trainer().run(run, data, RNG.at("run"))
        spent = clock.lap()
        found = {row.name: row.value for row in rows if row.client is None}
        up, down = found["bytes/up"], found["bytes/down"]
        accuracy = f"{found['holdout/accuracy']:.4f}"
        costs.append((f"{spent:.2f}", f"{up:,.0f}", f"{down:,.0f}", accuracy))
        states.append(state.server_state if run is method else state.server_state["inner"])
    for kind, cost in zip(("in the clear", "in secret"), costs, strict=True):
        print(line(f"{name} {kind}", *cost), flush=True)
    if not isinstance(method, Ordered):  # orders differ between runs, and labels with them
        flat = [dict(tree.leaves(server_state)) for server_state in states]
        largest = max(_difference(leaf, flat[1][path]) for path, leaf in flat[0].items())
        print(f"  largest difference in the server's state: {largest:g}", flush=True)


def _difference(x: object, y: object) -> float:
    if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
        return float((x.double() - y.double()).abs().max()) if x.numel() else 0.0
    return 0.0 if x == y else math.inf


def methods(root: Path | None) -> None:
    """Print the costs of the methods; FedHull only if its data are there."""
    print(f"\n{head('method', 'CPU s of all', 'bytes up', 'bytes down', 'holdout accuracy')}")
    digits = Partitioned(Digits(), Dirichlet(10, alpha=0.5, min_size=10))
    compare("FlyNN on digits", FlyNN(), SecureSum(FlyNN(), modulus=2**32), digits)
    average = FedAvg(rounds=3, lr=0.3)
    compare("FedAvg on digits", average, SecureSum(average), digits)
    if root is not None:
        file = root / "single_cell" / "olsson" / "olsson_poincare_embedding.npz"
        grid = PolarGrid(epsilon=0.01, radius=0.9772)
        boundary = HyperbolicBoundary(C=0.1, pairs=3)
        for bits in (None, 127):
            hulls = FedHull(grid, grouping=Spectral(), boundary=boundary, bits=bits)
            source = Points(file, ClassRuns(3, legacy=3), split=3)
            told = "" if bits is None else f" at {bits} bits"
            compare(f"FedHull on Olsson{told}", hulls, SecureSum(hulls), source)


def cohorts(options: argparse.Namespace) -> None:
    """Print the table for cohorts of several sizes."""
    method = Row(options.length, 2**options.bits - 1)
    print(f"{options.length} numbers modulo 2^{options.bits} - 1, {options.lost:.0%} lost, median "
          f"of {options.measured} clients")  # fmt: skip
    print(head("clients", "exchange", "CPU ms at a client", "bytes up", "bytes down"))
    for num_clients in options.clients:
        clients, lost = federation(num_clients), int(options.lost * num_clients)
        secure = SecureSum(method)
        if options.neighbours:
            folder = Path(tempfile.mkdtemp())
            keys.write_identities(folder, num_clients)
            secure = SecureSum(method, keys=folder, neighbours=NeighbourGraph(*options.neighbours))
            print(f"{num_clients} clients: {secure.plan(num_clients) or 'all pairs'}")
        ids = range(options.measured)
        report(num_clients, [one_among(secure, lost, clients, i) for i in ids])
        if num_clients <= options.whole:
            spent = whole(secure, method, lost, clients)
            print(f"{num_clients} clients as a whole: exact; server {spent:.3f} CPU s", flush=True)


def main() -> None:
    """Print the table for cohorts of several sizes, and that of methods."""
    args = parser(__doc__)
    args.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000])
    args.add_argument("--length", type=int, default=1000, help="length of a client's vector")
    args.add_argument("--bits", type=int, default=61, help="the modulus is 2 ** bits - 1")
    args.add_argument("--lost", type=float, default=0.1, help="share lost before the masked sum")
    args.add_argument("--measured", type=int, default=5, help="number of measured clients")
    args.add_argument("--whole", type=int, default=100, help="largest cohort run as a whole")
    args.add_argument("--neighbours", type=float, nargs=2, metavar=("CORRUPT", "DROPPED"),
                      help="fractions of clients; all pairs without them")  # fmt: skip
    args.add_argument("--only-cohorts", action="store_true", help="skip the table of methods")
    args.add_argument("--root", type=Path, help="data folder with single_cell/olsson")
    args.add_argument("--only-methods", action="store_true", help="skip the table of cohorts")
    options = args.parse_args()
    if not options.only_methods:
        cohorts(options)
    if not options.only_cohorts:
        methods(options.root)


if __name__ == "__main__":
    main()
