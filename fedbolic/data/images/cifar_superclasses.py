"""The superclasses of CIFAR-100."""

from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from fedbolic.data.hierarchies.hierarchy import Hierarchy
from fedbolic.data.hierarchies.hierarchy_files import HierarchySet
from fedbolic.data.hierarchies.trees import taxonomy

SUPERCLASSES = {
    "aquatic_mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food_containers": "bottle bowl can cup plate",
    "fruit_and_vegetables": "apple mushroom orange pear sweet_pepper",
    "household_electrical_devices": "clock keyboard lamp telephone television",
    "household_furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large_carnivores": "bear leopard lion tiger wolf",
    "large_man-made_outdoor_things": "bridge castle house road skyscraper",
    "large_natural_outdoor_scenes": "cloud forest mountain plain sea",
    "large_omnivores_and_herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium_mammals": "fox porcupine possum raccoon skunk",
    "non-insect_invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small_mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles_1": "bicycle bus motorcycle pickup_truck train",
    "vehicles_2": "lawn_mower rocket streetcar tank tractor",
}
"""Classes of every superclass. CIFAR-100 numbers both in the order of their names."""


@dataclass(frozen=True)
class CIFAR100Superclasses(HierarchySet):
    """The 100 classes of CIFAR-100, nodes 0 to 99 as they are numbered, and their superclasses.

    The names are those of the published files; nothing is read.

    References:
        Krizhevsky (2009), Learning multiple layers of features from tiny images.

    Example:
        >>> tree = CIFAR100Superclasses().read(None, download=False)
        >>> tree.names[0], tree.names[tree.ancestors[0]], len(tree)
        ('apple', 'fruit_and_vegetables', 120)
    """

    @override
    def read(self, root: Path | None, *, download: bool) -> Hierarchy:
        above = {name: parent for parent, names in SUPERCLASSES.items() for name in names.split()}
        return taxonomy({name: above[name] for name in sorted(above)})
