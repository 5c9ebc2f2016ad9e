"""Round trips of settings: objects to YAML and back."""

import pickle
from pathlib import Path

from hypothesis import Phase, given
from hypothesis import settings as choices
from hypothesis import strategies as st

from fedbolic.data import IID, Arrays, Digits, Dirichlet, Partitioned, Shards
from fedbolic.federated import (
    Clip,
    Cohort,
    Evaluation,
    FineTune,
    LocalTraining,
    RidgeHead,
    Sequential,
    ServerAdam,
    ServerSGD,
)
from fedbolic.federated.privacy.client_privacy import ClientPrivacy
from fedbolic.methods import Ditto, FedAvg, SphereFed
from fedbolic.nn.network.backbone import MLP, ConvNet
from fedbolic.nn.network.resnet import ResNet
from fedbolic.optim import SGD, Adam
from fedbolic.run.configuration import build, describe
from fedbolic.run.experiment import run

positive = st.floats(1e-12, 1e6)
rates = st.floats(0, 1, exclude_max=True)
counts = st.integers(1, 10**6)
# texts that YAML could mistake for numbers, booleans, nulls or its own syntax
texts = st.sampled_from(["a", "1", "1e3", "no", "a: b", "é", "0x1", "a b", "*", "12:30", "-2E+5"])
several = st.lists(counts, min_size=1, max_size=3).map(tuple)
backbones = (
    st.builds(MLP, several)
    | st.builds(ConvNet, counts)
    | st.builds(
        ResNet,
        counts,
        several,
        stem=st.sampled_from(["imagenet", "cifar"]),
        norm=st.sampled_from(["batch", "batch_untracked", "group"]),
    )
)
optimizers = st.builds(SGD, momentum=rates) | st.builds(Adam, beta1=rates, eps=positive)
servers = st.builds(ServerSGD, lr=positive, momentum=rates) | st.builds(
    ServerAdam, lr=positive, beta1=rates, tau=positive, beta2=rates
)
schedules = st.builds(LocalTraining, epochs=counts, batch_size=st.none() | counts)
common = {
    "backbone": backbones,
    "rounds": st.integers(2, 99),
    "local": schedules,
    "lr": positive,
    "optimizer": optimizers,
}
tables = st.lists(
    st.tuples(texts, st.sampled_from(["shared", "personal", "fixed"])), max_size=3
).map(lambda pairs: {**dict(pairs), "*": "shared"})
methods = (
    st.builds(FedAvg, **common, sharing=tables, proximal=positive, server_optimizer=servers)
    | st.builds(Ditto, **common, personal_proximal=positive)
    | st.builds(SphereFed, **common, closed_form_head=st.booleans(), ridge=positive)
)
partitions = (
    st.builds(IID, counts)
    | st.builds(Shards, counts, counts)
    | st.builds(Dirichlet, counts, alpha=positive, cap=st.booleans(), min_size=counts)
)
sources = st.builds(
    Partitioned,
    st.just(Digits()) | st.builds(Arrays, texts.map(Path)),
    partitions,
    test_rate=rates,
    num_train=st.none() | counts,
    root=st.none() | texts.map(Path),
    download=st.booleans(),
)
settings = st.fixed_dictionaries(
    {
        "method": methods,
        "data": sources,
        "cohort": st.builds(Cohort, st.floats(1e-6, 1)),
        "channels": st.lists(st.builds(Clip, positive, texts), max_size=2).map(tuple),
        "evaluation": st.builds(
            Evaluation,
            counts,
            st.none() | st.builds(FineTune, counts, st.none() | positive),
            st.none() | st.builds(RidgeHead, positive),
        ),
        "privacy": st.none() | st.builds(ClientPrivacy, st.floats(1e-9, 0.1), positive),
        "precision": st.sampled_from(["32-true", "64-true", "bf16-mixed"]),
        "threads": counts,
        "seed": st.integers(-(2**70), 2**70),
        "name": st.none() | texts,
        "runs": texts.map(Path),
    }
)


@choices(phases=[Phase.generate])  # shrinking such settings takes minutes
@given(settings)
def test_what_is_described_is_built(tmp_path_factory, settings):
    settings = {"engine": Sequential(), "device": "auto", "loggers": (), **settings}
    file = tmp_path_factory.getbasetemp() / "described.yaml"
    file.write_text(describe(run, settings))
    built = build(run, ["--config", str(file)])
    for name, value in settings.items():
        assert built[name] == value, name
    assert built.keys() == settings.keys()
    assert pickle.loads(pickle.dumps(built)) == built  # on its way to a process of a sweep
