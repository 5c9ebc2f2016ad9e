"""Folders of images of users."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedbolic.data import ImageFolder


def read(dataset):
    return dataset.read(None, download=False)


def draw(folder, classes=("bee", "ant"), num=4, size=(6, 5)):
    """Random images in folders of classes; the arrays by class, in the order of files."""
    image = pytest.importorskip("PIL.Image")
    generator, made = np.random.default_rng(0), {}
    for name in classes:
        (folder / name).mkdir(parents=True)
        made[name] = generator.integers(0, 256, (num, *size, 3), dtype=np.uint8)
        for i, pixels in enumerate(made[name]):
            image.fromarray(pixels).save(folder / name / f"{i}.png")
    return made


def test_a_folder_of_images_has_a_class_per_folder(tmp_path):
    made = draw(tmp_path / "pets")
    (tmp_path / "pets" / "bee" / "notes.txt").write_text("no image")
    parts = ImageFolder(Path("pets")).read(tmp_path, download=False)
    assert parts.class_names == ("ant", "bee")
    assert parts.y_train.tolist() == [0] * 3 + [1] * 3
    assert parts.x_train.dtype == torch.uint8
    expected = np.concatenate([made["ant"][:3], made["bee"][:3]]).transpose(0, 3, 1, 2)
    assert np.array_equal(parts.x_train.numpy(), expected)
    assert np.array_equal(parts.x_test[1].numpy(), made["bee"][3].transpose(2, 0, 1))


def test_folders_of_training_and_test_images_are_kept(tmp_path):
    draw(tmp_path / "train", num=3)
    draw(tmp_path / "test", num=2)
    parts = read(ImageFolder(tmp_path))
    assert (len(parts.x_train), len(parts.x_test)) == (6, 4)
    draw(tmp_path / "test", ("wasp",))
    with pytest.raises(ValueError, match="wasp"):
        read(ImageFolder(tmp_path))


def test_images_are_resized_and_made_grey_if_asked(tmp_path):
    draw(tmp_path, size=(6, 5))
    draw(tmp_path, ("cat",), size=(9, 4))
    with pytest.raises(ValueError, match=r"differ in size.*6 x 5.*9 x 4.*set size"):
        read(ImageFolder(tmp_path))
    parts = read(ImageFolder(tmp_path, size=(8, 7), grey=True))
    assert parts.x_train.shape[1:] == (1, 8, 7)


def test_a_class_without_images_keeps_its_label_unless_its_files_would_be_passed_over(tmp_path):
    draw(tmp_path, ("ant", "cat"))
    (tmp_path / "bee").mkdir()
    (tmp_path / "bee" / ".DS_Store").write_text("of a system")
    for hidden in (".cache", "bee/.cache", "cat/.cache"):
        (tmp_path / hidden).mkdir()
        (tmp_path / hidden / "x.png").write_text("of a program")
    (tmp_path / "ant" / "._x.png").write_text("of a system")
    parts = read(ImageFolder(tmp_path))
    assert parts.class_names == ("ant", "bee", "cat")
    assert parts.y_train.unique().tolist() == [0, 2]
    (tmp_path / "bee" / "x.gif").write_bytes(b"GIF")
    with pytest.raises(ValueError, match=r"x\.gif is not used: .* as one of \.png.*remove it"):
        read(ImageFolder(tmp_path))


def test_what_is_no_image_is_refused(tmp_path):
    draw(tmp_path)
    (tmp_path / "ant" / "x.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"x\.png is damaged or not an image"):
        read(ImageFolder(tmp_path))
    (tmp_path / "empty" / "class").mkdir(parents=True)
    with pytest.raises(ValueError, match="has no images: it needs a folder"):
        read(ImageFolder(tmp_path / "empty"))
    with pytest.raises(FileNotFoundError, match="nowhere is not in"):
        ImageFolder(Path("nowhere")).read(tmp_path, download=False)
