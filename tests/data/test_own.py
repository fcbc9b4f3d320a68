"""A user's own data: class folders and a CSV list, and everything that can be wrong with them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image, ImageOps

import hace
from hace.cli import main
from hace.errors import ConfigError, DataError, DataWarning, FormatError, HaceError
from tests.data_layouts import write_image

H = hace.Hierarchy.from_edges(
    [("animal", "dog"), ("animal", "cat"), ("dog", "husky"), ("dog", "beagle")],
    leaves=["husky", "beagle", "cat"],
    names={"husky": "Siberian Husky"},
)


def ids(split: hace.data.Samples | hace.data.Features) -> list[str]:
    return [split.hierarchy.nodes[v] for v in split.nodes]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for split, count in (("train", 2), ("test", 1)):
        for shade, label in enumerate(("husky", "beagle", "cat")):
            for i in range(count):
                colour = (80 * shade, 100 * i, 250 if split == "train" else 0)
                write_image(tmp_path / "photos" / split / label / f"{i}.png", colour=colour)
    return tmp_path / "photos"


def test_folders_with_splits(photos: Path) -> None:
    data = hace.load_dataset("folders", photos, hierarchy=H)
    assert data.name == "photos"
    assert list(data) == list(data.splits) == ["train", "test"]
    assert ids(data["train"]) == ["beagle", "beagle", "cat", "cat", "husky", "husky"]
    assert data["test"].names == ["test/beagle/0.png", "test/cat/0.png", "test/husky/0.png"]
    assert data["test"].labels.tolist() == [1, 2, 0]
    assert data["test"].image(2).getpixel((0, 0)) == (0, 0, 0)
    with pytest.raises(
        ConfigError, match=r"photos has no split 'tset'. It has train, test. Did you mean 'test'"
    ):
        data["tset"]


def test_small_copies_are_made_once_and_again_when_photos_change(photos: Path) -> None:
    data = hace.load_dataset("folders", photos, hierarchy=H, pixels=6)
    assert data["train"].pixels is not None
    assert data["train"].paths is None
    assert tuple(data["train"].pixels.shape) == (6, 3, 6, 6)
    assert data["test"].image(2).size == (6, 6)
    assert data["test"].image(2).getpixel((0, 0)) == (0, 0, 0)
    made = (photos / "small-6.npz").stat().st_mtime_ns
    again = hace.load_dataset("folders", photos, hierarchy=H, pixels=6)
    assert again.fingerprint == data.fingerprint
    assert (photos / "small-6.npz").stat().st_mtime_ns == made
    write_image(photos / "train" / "cat" / "9.png", colour=(1, 2, 3))
    assert len(hace.load_dataset("folders", photos, hierarchy=H, pixels=6)["train"]) == 7
    (photos / "small-6.npz").write_bytes(b"cut off")
    assert len(hace.load_dataset("folders", photos, hierarchy=H, pixels=6)["train"]) == 7
    with pytest.raises(ConfigError, match=r"pixels must be a whole number of at least 1\. Got 0"):
        hace.load_dataset("folders", photos, hierarchy=H, pixels=0)


def test_species_numbers_name_the_folders_of_cub200(tmp_path: Path) -> None:
    edges = [(f"genus {number % 7}", str(number)) for number in range(1, 201)]
    tree = hace.Hierarchy.from_edges(edges)
    for split in ("train", "test"):
        for number in range(1, 201):
            write_image(tmp_path / split / f"{number:03d}.Bird_{number}" / f"{split}.png")
    data = hace.load_dataset("cub200", tmp_path, hierarchy=tree)
    assert (data.name, data.hierarchy.num_leaves) == ("cub200", 200)
    assert data.hierarchy.parents("021.Bird_21") == ("genus 0",)
    assert data["test"].names[20] == "test/021.Bird_21/test.png"
    assert data.hierarchy.leaves[data["test"].labels[20]] == "021.Bird_21"
    (tmp_path / "train" / "021.Bird_21").rename(tmp_path / "train" / "Bird_21")
    with pytest.raises(DataError, match=r"must hold 200 folders, .* Got 199 of them"):
        hace.load_dataset("cub200", tmp_path, hierarchy=tree)


def test_a_photo_replaced_by_another_of_the_same_size_changes_the_fingerprint(photos: Path) -> None:
    """It kept the fingerprint, and a finished training was taken for one on these photos."""
    photo = photos / "train/cat/0.png"
    image = Image.open(photo)
    image.save(photo.with_suffix(".bmp"))  # of one size, whatever it shows
    photo.unlink()

    def fingerprint(**options: int) -> str:
        return hace.load_dataset("folders", photos, hierarchy=H, **options).fingerprint

    before, small_before = fingerprint(), fingerprint(pixels=6)
    ImageOps.invert(image).save(photo.with_suffix(".bmp"))
    assert fingerprint() != before
    assert fingerprint(pixels=6) != small_before
    image.save(photo.with_suffix(".bmp"))
    assert fingerprint() == before
    assert fingerprint(pixels=6) == small_before


def test_folders_without_splits_by_name_and_at_mixed_levels(tmp_path: Path) -> None:
    for name in ("Siberian Husky/a.JPG", "dog/b.jpeg", "beagle/deep/dog/c.png", "cat/d.webp", "beagle/e.bmp"):
        write_image(tmp_path / name)
    (tmp_path / "cat" / "notes.txt").touch()
    (tmp_path / ".cache").mkdir()
    write_image(tmp_path / ".cache" / "x.png")
    data = hace.load_dataset("folders", tmp_path, hierarchy=H)
    assert list(data.splits) == ["train"]
    assert dict(zip(data["train"].names, ids(data["train"]), strict=True)) == {
        "Siberian Husky/a.JPG": "husky",
        "dog/b.jpeg": "dog",
        "beagle/deep/dog/c.png": "dog",
        "cat/d.webp": "cat",
        "beagle/e.bmp": "beagle",
    }
    with pytest.raises(
        DataError,
        match=r"2 of 5 are not; the first is 'beagle/deep/dog/c.png' with 'dog'",
    ):
        _ = data["train"].labels
    leaves = data["train"].select(data["train"].leaf_only())
    assert len(leaves) == 3
    assert leaves.labels.tolist() == [0, 1, 2]


def test_folders_in_folders_are_a_hierarchy(tmp_path: Path) -> None:
    for name in (
        "train/dog/husky/a.png",
        "train/dog/beagle/b.png",
        "train/cat/c.png",
        "test/dog/husky/d.png",
    ):
        write_image(tmp_path / name)
    data = hace.load_dataset("folders", tmp_path, root_node=True)
    assert data.hierarchy.leaves == ("beagle", "cat", "husky")
    assert data.hierarchy.path("husky") == ("husky", "dog", "root")
    assert ids(data["test"]) == ["husky"]


def test_a_class_in_other_groups_of_another_split_is_pointed_out(tmp_path: Path) -> None:
    """The group of the second split vanished without a word."""
    for name in (
        "train/Vegetables/Leek/a.png",
        "train/Vegetables/Brown-Cap-Mushroom/b.png",
        "train/Fruit/Apple/Granny-Smith/c.png",
        "train/Fruit/Apple/Pink-Lady/d.png",
        "test/Vegetables/Leek/e.png",
        "test/Vegetables/Mushroom/Brown-Cap-Mushroom/f.png",
    ):
        write_image(tmp_path / name)
    words = (
        r"1 of 4 classes lies in other groups of test than of train: train/Vegetables/Brown-Cap-Mushroom and "
        r"test/Vegetables/Mushroom/Brown-Cap-Mushroom\. The groups of train are used\. .*--hierarchy"
    )
    with pytest.warns(DataWarning, match=words):
        data = hace.load_dataset("folders", tmp_path)
    assert data.hierarchy.path("Brown-Cap-Mushroom") == ("Brown-Cap-Mushroom", "Vegetables")
    write_image(tmp_path / "test/Fruit/Aple/Pink-Lady/g.png")
    with pytest.warns(DataWarning, match=r"2 of 4 classes lie in .* 'Aple' and 'Apple' differ by one letter"):
        hace.load_dataset("folders", tmp_path)
    given = hace.Hierarchy.from_paths(
        [
            ("Vegetables", "Leek"),
            ("Vegetables", "Brown-Cap-Mushroom"),
            ("Apple", "Granny-Smith"),
            ("Apple", "Pink-Lady"),
        ]
    )
    hace.load_dataset("folders", tmp_path, hierarchy=given)  # folders say nothing of its groups


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("Apple", "Aple", True),
        ("Apple", "Apples", True),
        ("Apple", "apple", True),
        ("Golden_Apples", "golden Aples", True),
        ("001.Apple", "002.Apple", False),
        ("Apple", "Appel", False),
        ("Boeing 737", "Boeing 747", False),
        ("group a", "group b", False),
        ("Ara", "Ada", False),
    ],
)
def test_groups_that_differ_by_one_letter(one: str, other: str, alike: bool, tmp_path: Path) -> None:
    for name in (f"{one}/x/1.png", f"{one}/y/2.png", f"{other}/z/3.png", "pears/1.png", "peers/1.png"):
        write_image(tmp_path / name)  # pears and peers are classes, whose names may be alike
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hace.load_dataset("folders", tmp_path)
    said = [str(warning.message) for warning in caught]
    assert len(said) == alike
    assert all("differ by one letter" in text and repr(one) in text and repr(other) in text for text in said)


def test_folders_beside_the_splits_are_pointed_out(photos: Path) -> None:
    write_image(photos / "unlabelled" / "x" / "1.png")
    (photos / "notes").mkdir()
    (photos / ".thumbnails").mkdir()
    write_image(photos / ".thumbnails" / "1.png")
    with pytest.warns(DataWarning, match=r"photos: 'unlabelled' holds images and is not read") as caught:
        hace.load_dataset("folders", photos, hierarchy=H)
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda f: write_image(f / "train/huskey/1.png"),
            "must be a class of the hierarchy, by id or unique name. Did you mean 'husky'? 1 of 7 images",
        ),
        (lambda f: (f / "train/empty").mkdir(), "1 have none; the first is 'empty'"),
        (lambda f: [p.unlink() for p in (f / "test").rglob("*.png")], "test: must hold images. Got none"),
        (lambda f: write_image(f / "test/1.png"), "test/1.png: every image must be in the folder of a class"),
        (
            lambda f: (f / "test/cat/link.png").symlink_to(f / "train/cat/0.png"),
            "1 are in two; the first is",
        ),
        (
            lambda f: (f / "test/cat/link.png").symlink_to(f / "test/cat/0.png"),
            "twice in the split 'test'",
        ),
    ],
    ids=["label", "class without images", "split without images", "loose", "two splits", "twice"],
)
def test_folders_that_do_not_fit(spoil: Callable[[Path], object], words: str, photos: Path) -> None:
    spoil(photos)
    with pytest.raises(DataError) as caught:
        hace.load_dataset("folders", photos, hierarchy=H)
    assert words in str(caught.value)


def test_a_class_with_the_name_of_its_group(tmp_path: Path) -> None:
    for name in ("fruit/avocado/avocado/1.png", "fruit/pear/conference/1.png", "fruit/pear/2.png"):
        write_image(tmp_path / name)
    data = hace.load_dataset("folders", tmp_path, allow_empty=True)
    assert ids(data["train"]) == ["fruit/avocado/avocado", "fruit/pear", "fruit/pear/conference"]
    assert data.hierarchy.names[data.hierarchy.index("fruit/avocado")] == "avocado"


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"nowhere: the folder does not exist. Expected a folder for each class"
    ):
        hace.load_dataset("folders", tmp_path / "nowhere", hierarchy=H)


def test_classes_without_samples(photos: Path) -> None:
    bigger = hace.Hierarchy.from_edges(
        [*((p, c) for p, c in (("dog", "husky"), ("dog", "beagle"))), ("cats", "cat"), ("cats", "lynx")]
    )
    with pytest.raises(DataError, match=r"1 of 4 have none: 'lynx'.*allow_empty=True"):
        hace.load_dataset("folders", photos, hierarchy=bigger)
    assert len(hace.load_dataset("folders", photos, hierarchy=bigger, allow_empty=True)["train"]) == 6


def test_images_that_are_broken(photos: Path) -> None:
    whole = (photos / "test/cat/0.png").read_bytes()
    data = hace.load_dataset("folders", photos, hierarchy=H)
    for content in (whole[: len(whole) // 2], b"", b"text", whole[:30]):
        (photos / "test/cat/0.png").write_bytes(content)
        with pytest.raises(DataError, match=r"photos/test/cat/0.png: the image cannot be read"):
            data["test"].image(1)
    (photos / "test/cat/0.png").unlink()
    with pytest.raises(DataError, match=r"photos/test/cat/0.png: the image does not exist"):
        data["test"].image(1)
    with pytest.raises(DataError, match=r"photos/test/cat/0.png: cannot be reached: No such file"):
        _ = data.fingerprint
    (photos / "test/cat/0.png").mkdir()
    with pytest.raises(DataError, match=r"photos/test/cat/0.png: must be a file\. Got a folder"):
        data["test"].image(1)


def manifest(photos: Path, *rows: str, name: str = "list.csv") -> Path:
    path = photos / name
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_manifest_at_mixed_levels(photos: Path) -> None:
    path = manifest(
        photos,
        "Label,note,path,split",
        "Siberian Husky,,train/husky/0.png,train",
        'dog,"known, roughly",train/beagle/1.png,train',
        f"cat,,{photos / 'train/cat/0.png'},train",
        "beagle,,./test/../train/beagle/0.png,test",
    )
    data = hace.load_dataset("manifest", path, hierarchy=H)
    assert ids(data["train"]) == ["husky", "dog", "cat"]
    assert data["test"].names == ["train/beagle/0.png"]
    assert [data["train"].image(i).getpixel((0, 0))[0] for i in range(3)] == [0, 80, 160]
    tabbed = manifest(photos, "path\tlabel", "train/husky/0.png\thusky", name="list.tsv")
    assert list(hace.load_dataset("manifest", tabbed, hierarchy=H, allow_empty=True).splits) == ["train"]


@pytest.mark.parametrize(
    ("rows", "kind", "words"),
    [
        (["path,class", "a,b"], FormatError, "must have a column 'label'. Got 'path', 'class'"),
        (
            ["path,label", "train/husky/0.png"],
            FormatError,
            "line 2: every row must have 2 cells, as the header has. Got 1",
        ),
        (
            ["path,label", "train/husky/0.png,"],
            FormatError,
            "line 2: path, label and split must not be empty",
        ),
        (["path,label"], DataError, "must list images. Got none"),
        (["path,label", '"train'], FormatError, "line 2: every row must be valid CSV"),
        (
            ["path,label", "train/husky/0.png,huskey"],
            DataError,
            "the first is 'huskey' in line 2. Did you mean 'husky'",
        ),
        (
            ["path,label", "train/husky/9.png,husky"],
            DataError,
            "1 of 1 are missing; the first is train/husky/9.png",
        ),
        (
            ["path,label", "train/husky/0.png,husky"],
            DataError,
            "2 of 3 have none: 'beagle', 'cat'",
        ),
        (
            ["path,label,split", "train/husky/0.png,husky,train", "test/../train/husky/0.png,husky,test"],
            DataError,
            "every image must be in one split. 1 are in two",
        ),
        (
            ["path,label", *["train/husky/0.png,husky"] * 2],
            DataError,
            "twice in the split 'train'",
        ),
    ],
)
def test_manifests_that_do_not_fit(rows: list[str], kind: type[HaceError], words: str, photos: Path) -> None:
    with pytest.raises(kind) as caught:
        hace.load_dataset("manifest", manifest(photos, *rows), hierarchy=H)
    assert words in str(caught.value)


def test_integer_labels_of_a_manifest(photos: Path) -> None:
    """They are ids where the hierarchy has them all, positions otherwise, and what label_kind says in any case."""
    images = ["train/husky/0.png", "train/beagle/0.png", "train/cat/0.png"]
    path = manifest(photos, "path,label", *(f"{image},{i}" for i, image in enumerate(images)))
    assert ids(hace.load_dataset("manifest", path, hierarchy=H)["train"]) == ["husky", "beagle", "cat"]
    numbered = hace.Hierarchy.flat(["2", "0", "1"])
    assert hace.load_dataset("manifest", path, hierarchy=numbered)["train"].labels.tolist() == [1, 2, 0]
    by_position = hace.load_dataset("manifest", path, hierarchy=numbered, label_kind="index")
    assert by_position["train"].labels.tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="labels must be ids or unique names of the hierarchy"):
        hace.load_dataset("manifest", path, hierarchy=H, label_kind="id")
    path = manifest(photos, "path,label", f"{images[0]},3")
    with pytest.raises(DataError, match="labels must be from 0 to 2"):
        hace.load_dataset("manifest", path, hierarchy=H)


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_a_validation_split_has_one_name(photos: Path, name: str) -> None:
    (photos / "test").rename(photos / name)
    data = hace.load_dataset("folders", photos, hierarchy=H)
    assert list(data.splits) == ["train", "val"]
    rows = ["train/husky/0.png,husky,train", f"{name}/cat/0.png,cat,{name.title()}"]
    listed = hace.load_dataset(
        "manifest", manifest(photos, "path,label,split", *rows), hierarchy=H, allow_empty=True
    )
    assert listed["val"].names == [f"{name}/cat/0.png"]
    if name != "val":
        (photos / "val" / "cat").mkdir(parents=True)
        with pytest.raises(DataError, match=f"the split 'val' must be one folder. Got val and {name}"):
            hace.load_dataset("folders", photos, hierarchy=H)


def test_a_manifest_needs_a_file_and_a_hierarchy(photos: Path) -> None:
    with pytest.raises(ConfigError, match=r"brings no hierarchy\. Give one with --hierarchy"):
        hace.load_dataset("manifest", manifest(photos, "path,label"))
    with pytest.raises(FormatError, match=r"nowhere.csv: cannot be read: No such file"):
        hace.load_dataset("manifest", photos / "nowhere.csv", hierarchy=H)


@pytest.mark.parametrize(
    ("module", "package", "use"),
    [
        ("PIL.Image", "pillow", lambda data, path: data["test"].image(0)),
        ("safetensors", "safetensors", lambda data, path: hace.load_dataset("features", path, hierarchy=H)),
    ],
)
def test_packages_that_are_not_there(
    module: str, package: str, use: Callable, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = hace.load_dataset("folders", photos, hierarchy=H)
    path = tmp_path / "f.safetensors"
    path.touch()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        ConfigError,
        match=rf'needs the package {package}. Install it in a checkout of hace: pip install "\.\[data\]"',
    ):
        use(data, path)


def test_names_and_options_of_data_sets(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"dataset must be one of 'cifar100', .*Got 'cifar10'. Did you mean 'cifar100'"
    ):
        hace.load_dataset("cifar10", tmp_path)
    with pytest.raises(
        ConfigError, match=r"An option of 'nabirds' must be one of crop. Got 'corp'. Did you mean 'crop'"
    ):
        hace.load_dataset("nabirds", tmp_path, corp=True)
    with pytest.raises(ConfigError, match=r"'cifar100' needs its folder or file. Give --data-root"):
        hace.load_dataset("cifar100")
    with pytest.raises(ConfigError, match=r"is made by a program\. Omit --data-root"):
        hace.load_dataset("synthetic", tmp_path)
    with pytest.raises(ConfigError, match="'folders' cannot be downloaded"):
        hace.load_dataset("folders", tmp_path, download=True)


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path, follow_symlinks: bool = True) -> bool:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(DataError, match=r"variants.txt: cannot be read: Permission denied"):
        hace.load_dataset("aircraft", tmp_path)


def test_a_share_of_each_class_is_held_out_as_the_test(tmp_path: Path) -> None:
    lines = ["path,label"]
    for label, count in (("husky", 10), ("beagle", 5), ("cat", 1)):
        for i in range(count):
            write_image(tmp_path / "photos" / label / f"{i}.png", colour=(i, 0, 0))
            lines.append(f"photos/{label}/{i}.png,{label}")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    for kind, root in (("folders", tmp_path / "photos"), ("manifest", tmp_path / "list.csv")):
        data = hace.load_dataset(kind, root, hierarchy=H, test=0.2)
        assert sorted(ids(data["test"])) == ["beagle", "husky", "husky"]
        assert len(data["train"]) == 13
        assert not set(data["train"].names) & set(data["test"].names)
        assert data.fingerprint == hace.load_dataset(kind, root, hierarchy=H, test=0.2).fingerprint
        with pytest.raises(DataError, match=r"test=0.01 holds out no sample: every class has too few"):
            hace.load_dataset(kind, root, hierarchy=H, test=0.01)


def test_samples_labelled_above_the_leaves_are_not_held_out(tmp_path: Path) -> None:
    lines = ["path,label"]
    for label, count in (("husky", 4), ("beagle", 4), ("cat", 4), ("dog", 8)):
        for i in range(count):
            write_image(tmp_path / label / f"{i}.png", colour=(i, 0, 0))
            lines.append(f"{label}/{i}.png,{label}")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    data = hace.load_dataset("manifest", tmp_path / "list.csv", hierarchy=H, test=0.25)
    assert sorted(ids(data["test"])) == ["beagle", "cat", "husky"]
    assert ids(data["train"]).count("dog") == 8


def test_a_test_share_without_training_samples(photos: Path) -> None:
    rows = [f"train/{label}/0.png,{label},fold1" for label in ("husky", "beagle", "cat")]
    root = manifest(photos, "path,label,split", *rows)
    with pytest.raises(ConfigError, match=r"test=0.2 must come with a split 'train' .* Got fold1 in"):
        hace.load_dataset("manifest", root, hierarchy=H, test=0.2)


@pytest.mark.parametrize("share", [1, -0.1, "half", 20])
def test_a_test_share_that_is_none(photos: Path, share: object) -> None:
    with pytest.raises(ConfigError, match=r"test must be a share from 0 to less than 1, such as 0.2. Got"):
        hace.load_dataset("folders", photos / "train", hierarchy=H, test=share)


def test_a_test_share_beside_a_test_split(photos: Path) -> None:
    with pytest.raises(ConfigError, match=r"left out where the data have a test split\. Got test=0\.2 for"):
        hace.load_dataset("folders", photos, hierarchy=H, test=0.2)


def test_images_without_a_test_split_get_the_remedy(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "folders", "--data-root", str(photos / "train")]) == 0
    assert "no test split: a study needs one. -o test=0.2 holds out a fifth" in capsys.readouterr().out
    data = hace.load_dataset("folders", photos / "train", hierarchy=H)
    with pytest.raises(ConfigError, match=r"train has no split 'test'. It has train. Give .* -o test=0.2"):
        data["test"]
