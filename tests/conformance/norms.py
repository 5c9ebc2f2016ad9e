"""Networks with batch norm, whose statistics are averaged like parameters."""

from fedbolic.data import FederatedData
from tests.conformance.loop import End
from tests.federated.simple_method import RNG, NormNet, federation, plain_network


def federation_for_norms() -> FederatedData:
    """A federation without batches of one, which batch norm cannot use."""
    return federation((6, 9, 12, 6))


def first_network(method, data):
    """Network that a run begins with."""
    parameters, buffers = method.model(data.meta).init(RNG.at("init").at("model").number())
    parameters = {name: value.double() for name, value in parameters.items()}
    return plain_network(parameters, buffers, norm=isinstance(method.backbone, NormNet))


def copied(network):
    """All values of a network."""
    return {name: value.clone() for name, value in network.state_dict().items()}


def end_of(network, data, clients=None) -> End:
    """End of a run with one model for all."""
    models = dict.fromkeys([None, *(client.id for client in data.clients)], network.eval())
    parameters = {name: p.detach() for name, p in network.named_parameters()}
    return End({"parameters": parameters}, clients or {}, models)
