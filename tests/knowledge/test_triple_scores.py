"""Ten scores against loops of their papers, written out number by number in mpmath."""

import mpmath
import pytest
import torch
from mpmath import mp, mpf

from fedbolic.knowledge import TripleScore, TripleScorer
from fedbolic.knowledge.triple_scores import FORMS

NAMES = list(FORMS)
DIM = 4


@pytest.fixture(autouse=True)
def digits():
    with mp.workdps(40):
        yield


def dot(x, y):
    return mpmath.fsum(a * b for a, b in zip(x, y, strict=True))


def norm(x):
    return mpmath.sqrt(dot(x, x))


def plus(x, y):
    return [a + b for a, b in zip(x, y, strict=True)]


def minus(x, y):
    return [a - b for a, b in zip(x, y, strict=True)]


def times(a, x):
    return [a * b for b in x]


def exp0(v, c):
    size = mpmath.sqrt(c) * norm(v)
    return times(mpmath.tanh(size) / size, v)


def log0(x, c):
    size = mpmath.sqrt(c) * norm(x)
    return times(mpmath.atanh(size) / size, x)


def add(x, y, c):
    """Moebius sum, Eq. (1) of Ganea et al. (2018)."""
    xy, xx, yy = dot(x, y), dot(x, x), dot(y, y)
    above = plus(times(1 + 2 * c * xy + c * yy, x), times(1 - c * xx, y))
    return times(1 / (1 + 2 * c * xy + c * c * xx * yy), above)


def dist(x, y, c):
    gap = norm(add(times(-1, x), y, c))
    return 2 / mpmath.sqrt(c) * mpmath.atanh(mpmath.sqrt(c) * gap)


def rotation(angles, x):
    """Givens rotations of the planes of coordinates i and n / 2 + i."""
    half, found = len(x) // 2, list(x)
    for i, angle in enumerate(angles):
        a, b = x[i], x[half + i]
        found[i] = mpmath.cos(angle) * a - mpmath.sin(angle) * b
        found[half + i] = mpmath.sin(angle) * a + mpmath.cos(angle) * b
    return found


def reflection(angles, x):
    half, found = len(x) // 2, list(x)
    for i, angle in enumerate(angles):
        a, b = x[i], x[half + i]
        found[i] = mpmath.cos(angle) * a + mpmath.sin(angle) * b
        found[half + i] = mpmath.sin(angle) * a - mpmath.cos(angle) * b
    return found


def attention(x, y, a):
    """Eq. (7) of Chami et al. in the tangent space."""
    u, v = mpmath.exp(dot(a, x)), mpmath.exp(dot(a, y))
    return plus(times(u / (u + v), x), times(v / (u + v), y))


def by_the_paper(name, h, r, t, c):
    half = len(h) // 2
    if name == "TransE":
        return -norm(minus(plus(h, r), t))
    if name == "DistMult":
        return mpmath.fsum(a * b * d for a, b, d in zip(h, r, t, strict=True))
    if name == "ComplEx":
        h, r, t = (
            [mpmath.mpc(*z) for z in zip(x[:half], x[half:], strict=True)] for x in (h, r, t)
        )
        return mpmath.fsum(a * b * mpmath.conj(d) for a, b, d in zip(r, h, t, strict=True)).real
    if name == "RotatE":
        return -norm(minus(rotation(r, h), t))
    if name == "RotE":
        return -(norm(minus(plus(rotation(r[:half], h), r[half:]), t)) ** 2)
    if name == "RotH":
        turned = rotation(r[:half], exp0(h, c))
        return -(dist(add(turned, exp0(r[half:], c), c), exp0(t, c), c) ** 2)
    if name in ("AttE", "AttH"):
        n = len(h)
        angles, others, a, move = r[:half], r[half:n], r[n : 2 * n], r[2 * n :]
        if name == "AttE":
            turned = attention(rotation(angles, h), reflection(others, h), a)
            return -(norm(minus(plus(turned, move), t)) ** 2)
        x, y = (
            log0(turn, c) for turn in (rotation(angles, exp0(h, c)), reflection(others, exp0(h, c)))
        )
        turned = exp0(attention(x, y, a), c)
        return -(dist(add(turned, exp0(move, c), c), exp0(t, c), c) ** 2)
    n = len(h)
    scaled = [a * b for a, b in zip(r[:n], h, strict=True)]
    if name == "MuRE":
        return -(norm(minus(scaled, plus(t, r[n:]))) ** 2)
    one = mpf(1)
    turned = exp0([a * b for a, b in zip(r[:n], log0(exp0(h, one), one), strict=True)], one)
    return -(dist(turned, add(exp0(t, one), exp0(r[n:], one), one), one) ** 2)


def numbers(row):
    return [mpf(x) for x in row.tolist()]


def tables(score, *, seed=0, spread=0.6):
    torch.manual_seed(seed)
    initial = score.initial(5, 3)
    return {
        name: x.double() + spread * torch.randn_like(x, dtype=torch.double)
        for name, x in initial.items()
    }


@pytest.mark.parametrize("bias", ["both", "tail", "none"])
@pytest.mark.parametrize("name", NAMES)
def test_a_score_is_that_of_its_paper(name, bias):
    score = TripleScore(name, DIM, bias)
    given = tables(score)
    relations = torch.arange(3)
    for h in range(5):
        query = score.query_of(given, torch.full((3,), h), relations)
        found = score.scores(query, given["entity"])
        for r in range(3):
            raw = given.get("curvature")
            c = None if raw is None else mpmath.log(1 + mpmath.exp(mpf(raw[r].item())))
            head = numbers(given["entity"][h])
            for t in range(5):
                tail = numbers(given["entity"][t])
                expected = by_the_paper(
                    name, head[:DIM], numbers(given["relation"][r]), tail[:DIM], c
                )
                expected += tail[-1] if bias != "none" else 0
                expected += head[DIM] if bias == "both" else 0
                assert abs(found[r, t].item() - expected) <= 1e-12 * max(1, abs(expected))


@pytest.mark.parametrize("name", NAMES)
def test_some_tails_have_the_scores_that_they_have_among_all(name):
    scorer = TripleScorer(TripleScore(name, DIM), 5, 3).double()
    heads, relations = torch.tensor([0, 3]), torch.tensor([2, 1])
    among = scorer.tail_scores(heads, relations)
    for t in range(5):
        alone = scorer(torch.stack((heads, relations, torch.tensor([t, t])), 1))
        torch.testing.assert_close(alone, among[:, t], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_automatic_casts_change_no_score(name):
    torch.manual_seed(1)
    scorer = TripleScorer(TripleScore(name, DIM), 5, 3)
    torch.nn.init.normal_(scorer.get_parameter("entity"))
    triples = torch.tensor([[0, 1, 2], [3, 0, 4]])
    alone, among = scorer(triples), scorer.tail_scores(triples[:, 0], triples[:, 1])
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(scorer(triples), alone)
        assert torch.equal(scorer.tail_scores(triples[:, 0], triples[:, 1]), among)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_of_scores_need_no_values(name):
    with torch.device("meta"):
        scorer = TripleScorer(TripleScore(name, DIM), 5, 3)
        triples = torch.tensor([[0, 1, 2], [3, 0, 4]])
        assert scorer(triples).shape == (2,)
        assert scorer.tail_scores(triples[:, 0], triples[:, 1]).shape == (2, 5)


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_are_those_of_differences(name):
    score = TripleScore(name, DIM)
    given = {name: x.requires_grad_() for name, x in tables(score).items()}

    def total(*values):
        query = score.query_of(
            dict(zip(given, values, strict=True)), torch.tensor([0, 1]), torch.tensor([1, 2])
        )
        return score.scores(query, values[0][2:])

    assert torch.autograd.gradcheck(total, tuple(given.values()))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("radius", [0.0, 1e-6, 60.0])
def test_scores_and_derivatives_are_finite_at_and_far_from_the_origin(name, radius):
    score = TripleScore(name, DIM)
    given = {
        key: radius * torch.ones_like(x) if key != "curvature" else x
        for key, x in tables(score).items()
    }
    given = {key: x.float().requires_grad_() for key, x in given.items()}
    query = score.query_of(given, torch.tensor([0, 1]), torch.tensor([1, 2]))
    found = score.scores(query, given["entity"])
    assert found.isfinite().all()
    gradients = torch.autograd.grad(found.sum(), list(given.values()), materialize_grads=True)
    assert all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("name", NAMES)
def test_cubes_are_those_of_coordinates_or_moduli_but_of_no_angle(name):
    score = TripleScore(name, DIM)
    given = tables(score)
    found = score.cubes(given, torch.tensor([[1, 2, 3], [0, 0, 4]]))
    for value, (h, r, t) in zip(found.tolist(), ((1, 2, 3), (0, 0, 4)), strict=True):
        relation = given["relation"][r].tolist()
        skipped = {"RotatE": 2, "RotE": 2, "RotH": 2, "AttE": 4, "AttH": 4}.get(name, 0)
        parts = [given["entity"][e, :DIM].tolist() for e in (h, t)] + [relation[skipped:]]
        if name == "ComplEx":
            pairs = [zip(x[:2], x[2:], strict=True) for x in parts]
            expected = sum(abs(complex(*z)) ** 3 for x in pairs for z in x)
        else:
            expected = sum(abs(a) ** 3 for x in parts for a in x)
        assert value == pytest.approx(expected, rel=1e-12)


def test_hyperbolic_scores_are_four_times_the_flat_ones_at_small_curvature():
    flat, curved = TripleScore("RotE", DIM, bias="none"), TripleScore("RotH", DIM, bias="none")
    given = tables(flat)
    raw = torch.full((3, 1), 1e-9, dtype=torch.double).expm1().log()
    heads, relations = torch.arange(3), torch.arange(3)
    a = flat.scores(flat.query_of(given, heads, relations), given["entity"])
    b = curved.scores(
        curved.query_of({**given, "curvature": raw}, heads, relations), given["entity"]
    )
    torch.testing.assert_close(b, 4 * a, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["ComplEx", "RotatE", "RotH", "AttH"])
def test_odd_dimensions_are_refused_where_planes_turn(name):
    with pytest.raises(ValueError, match="dim must be even"):
        TripleScore(name, 3)
