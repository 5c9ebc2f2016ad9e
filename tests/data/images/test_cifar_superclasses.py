"""Superclasses of CIFAR-100, compared with the list of coarse labels that many projects copy."""

from fedbolic.data import CIFAR100Superclasses

COARSE_LABELS = [
    *(4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11),
    *(6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5),
    *(5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17),
    *(10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13),
    *(16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13),
]
"""Superclass of every class, both numbered in the order of their names."""


def test_every_class_has_its_published_superclass():
    tree = CIFAR100Superclasses().read(None, download=False)
    classes, coarse = tree.names[:100], sorted(tree.names[100:])
    assert list(classes) == sorted(classes)
    assert len(coarse) == 20
    above = [tree.names[node] for node in tree.primary_parents[:100]]
    assert [coarse.index(name) for name in above] == COARSE_LABELS
    assert tree.num_pairs == 100
