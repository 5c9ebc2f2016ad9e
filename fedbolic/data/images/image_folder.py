"""Images of the user in folders, one per class."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.imports import extra
from fedbolic.core.reading import open_file, refuse_larger
from fedbolic.data.contract.dataset import Dataset, OfficialParts
from fedbolic.data.contract.labelled import parts_from_whole
from fedbolic.data.files.published_files import search_path

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".webp": "WEBP"}
"""Formats of images by extension; no other decoder is used."""

MOST_PIXELS = 2**26
"""Maximum number of pixels of an image, of which a file of some kilobytes may claim any number."""


@dataclass(frozen=True)
class ImageFolder(Dataset):
    """A folder with one folder of images per class, or folders ``train`` and ``test`` of these.

    The classes are the names of the folders, in ascending order, also of empty ones. Without
    ``train`` and ``test``, every fourth image of each class is used for testing. Files and folders
    whose names begin with a dot are left out. Needs Pillow (extra ``images``).

    Args:
        path: The folder. A relative path is looked up in ``root`` if that is given, otherwise in
            the folders of ``FEDBOLIC_DATA`` and then in the working directory.
        size: Height and width to which images are resized, at least 1; ``None`` if all have one
            size already.
        grey: Whether to convert images to one channel instead of three.

    Raises:
        ValueError: If ``size`` is below 1; when read, if Pillow is missing, there are no images, a
            file is damaged, or sizes differ.
    """

    path: Path
    size: tuple[int, int] | None = None
    grey: bool = False

    def __post_init__(self) -> None:
        for side in self.size or ():
            check.at_least(1, size=side)

    @override
    def read(self, root: Path | None, *, download: bool) -> OfficialParts:
        folder = _find_folder(self.path, root)
        parts = [folder / name for name in ("train", "test")]
        split = all(part.is_dir() for part in parts)
        names = _classes(parts[0] if split else folder)
        if not split:
            x, y = self._images(folder, names)
            return parts_from_whole(str(folder), x, y, class_names=names)
        if unknown := sorted(set(_classes(parts[1])) - set(names)):
            raise ValueError(f"{parts[1]} has classes that {parts[0]} lacks: {', '.join(unknown)}")
        (x, y), (x_test, y_test) = (self._images(part, names) for part in parts)
        return OfficialParts(str(folder), x, y, x_test, y_test, len(names), names)

    def _images(self, folder: Path, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        files = [
            (file, label)
            for label, name in enumerate(names)
            for file in _files(folder / name)
            if file.suffix.lower() in FORMATS
        ]
        if not files:
            raise ValueError(
                f"{folder} has no images: it needs a folder of {', '.join(FORMATS)} files per class"
            )
        used = {label for _, label in files}
        for unused in (folder / name for label, name in enumerate(names) if label not in used):
            if found := _files(unused):
                raise ValueError(
                    f"{found[0]} is not used: if it is an image, save it as one of "
                    f"{', '.join(FORMATS)}, otherwise remove it"
                )
        images: list[Tensor] = []
        for file, _ in files:
            images.append(self._image(file, images[0].shape if images else None, len(files)))
        return torch.stack(images), torch.tensor([label for _, label in files])

    def _image(
        self, file: Path, first: Sequence[int] | None, num_files: int
    ) -> UInt8[Tensor, "c h w"]:
        """An image, whose size is checked before it is decoded.

        Args:
            file: File of the image.
            first: Shape of the first image; ``None`` if this is it.
            num_files: Number of all images.
        """
        with extra("images", "ImageFolder"):
            from PIL import Image
        with open_file(file) as opened, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow about sizes, which are checked here
            try:
                image = Image.open(opened, formats=[FORMATS[file.suffix.lower()]])
                width, height = image.size
            except Exception as error:  # a damaged image may raise anything
                raise _damaged(file, error) from error
            self._check_size(file, height, width, first, num_files)
            try:
                image = image.convert("L" if self.grey else "RGB")
            except Exception as error:
                raise _damaged(file, error) from error
        if self.size is not None:
            height, width = self.size
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.array(image, dtype=np.uint8)
        return torch.from_numpy(pixels[None] if self.grey else pixels.transpose(2, 0, 1).copy())

    def _check_size(
        self, file: Path, height: int, width: int, first: Sequence[int] | None, num_files: int
    ) -> None:
        if height * width > MOST_PIXELS:
            raise ValueError(
                f"{file} has {width} x {height} pixels, more than {MOST_PIXELS}: reduce it"
            )
        size = (height, width) if self.size is None else self.size
        refuse_larger(math.prod(size) * (1 if self.grey else 3) * num_files, file.parents[1])
        if first is not None and tuple(first[1:]) != tuple(size):
            raise ValueError(
                f"images differ in size: the first has {first[1]} x {first[2]} pixels, {file} "
                f"{height} x {width}: set size, for instance to [32, 32]"
            )


def _damaged(file: Path, error: Exception) -> ValueError:
    text = " ".join(str(error).split())
    return ValueError(f"{file} is damaged or not an image: {text or type(error).__name__:.200}")


def _find_folder(path: Path, root: Path | None) -> Path:
    folders = search_path(root) if root else (*search_path(None), Path())
    for folder in folders:
        if (folder / path).is_dir():
            return folder / path
    searched = " or ".join(str(folder.absolute()) for folder in folders)
    raise FileNotFoundError(f"the folder {path} is not in {searched}: give an existing folder")


def _classes(folder: Path) -> tuple[str, ...]:
    folders = (each.name for each in folder.iterdir() if each.is_dir())
    return tuple(sorted(name for name in folders if not name.startswith(".")))


def _files(folder: Path) -> list[Path]:
    """All files in a folder and its folders, but hidden ones, in ascending order."""
    found = (file for file in folder.rglob("*") if not file.is_dir())  # a pipe is refused later
    return sorted(x for x in found if "/." not in f"/{x.relative_to(folder).as_posix()}")
