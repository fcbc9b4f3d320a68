"""Frozen backbones: what they compute, which files they take, and what they say about the others."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file

from hace.errors import ConfigError, FormatError, HaceError
from hace.files.weights import read_state_dict, weights_hash
from hace.lab.features.backbones import load_backbone
from tests.backbone_files import SIZE, VIT, save_weights


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "vit.safetensors"
    return save_weights(VIT, path, img_size=SIZE)


@pytest.fixture
def images() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)) for _ in range(3)]


def by_hand(images: list[Image.Image], preprocessing: dict) -> torch.Tensor:
    """Images of the right size need no resizing: pixels to numbers, minus mean, over deviation."""
    x = torch.tensor(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(preprocessing[key])[:, None, None] for key in ("mean", "std"))
    return (x - mean) / std


@pytest.mark.parametrize("pool", ["auto", "token", "avg"])
def test_vit_features_are_those_of_a_plain_forward(weights: Path, images: list, pool: str) -> None:
    backbone = load_backbone(VIT, checkpoint=weights, image_size=SIZE, crop_pct=1.0, pool=pool)
    model = timm.create_model(VIT, img_size=SIZE).eval()
    model.load_state_dict(load_file(weights))
    with torch.no_grad():
        tokens = model.forward_features(by_hand(images, backbone.preprocessing))  # (3, 1 + 4, 64)
    expected = tokens[:, 1:].mean(1) if pool == "avg" else tokens[:, 0]
    result = backbone(torch.stack([backbone.transform(image) for image in images]))
    assert backbone.dims == 64
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("pool", ["auto", "avg"])
def test_convolutional_features_are_the_pooled_map(tmp_path: Path, images: list, pool: str) -> None:
    path = save_weights("resnet10t", tmp_path / "weights.pt")
    backbone = load_backbone("resnet10t", checkpoint=path, image_size=SIZE, crop_pct=1.0, pool=pool)
    model = timm.create_model("resnet10t").eval()
    model.load_state_dict(torch.load(path, weights_only=True))
    with torch.no_grad():
        expected = model.forward_features(by_hand(images, backbone.preprocessing)).mean((2, 3))
    torch.testing.assert_close(backbone(by_hand(images, backbone.preprocessing)), expected)


def test_bf16_is_near_and_not_the_same(weights: Path, images: list) -> None:
    one, other = (
        load_backbone(VIT, checkpoint=weights, image_size=SIZE, dtype=d) for d in ("float32", "bf16")
    )
    x = torch.stack([one.transform(image) for image in images])
    a, b = one(x), other(x)
    assert b.dtype == torch.float32
    assert not torch.equal(a, b)
    torch.testing.assert_close(a, b, rtol=0.1, atol=0.1)


def test_larger_images_than_the_weights_were_made_for(weights: Path) -> None:
    """Positions are interpolated by timm's own translation."""
    backbone = load_backbone(VIT, checkpoint=weights, image_size=64)
    assert backbone.preprocessing["input_size"] == [3, 64, 64]
    assert backbone(torch.zeros(1, 3, 64, 64)).shape == (1, 64)


@pytest.mark.slow
def test_dinov2_is_preprocessed_as_its_authors_do(tmp_path: Path) -> None:
    path = save_weights("vit_small_patch14_dinov2", tmp_path / "small.safetensors", img_size=224, depth=1)
    with pytest.raises(FormatError, match=r"'blocks.1.norm1.weight' is missing"):
        load_backbone("vit_small_patch14_dinov2", checkpoint=path)
    backbone = load_backbone("vit_small_patch14_dinov2", checkpoint=full_depth(path))
    assert backbone.preprocessing["input_size"] == [3, 224, 224]
    assert backbone.preprocessing["crop_pct"] == 0.875
    assert backbone.transform(Image.new("RGB", (512, 256))).shape == (3, 224, 224)


def full_depth(path: Path) -> Path:
    """The same file with its only block twelve times."""
    one = load_file(path)
    whole = {key: value for key, value in one.items() if not key.startswith("blocks.")}
    for i in range(12):
        whole |= {
            key.replace("blocks.0.", f"blocks.{i}."): v
            for key, v in one.items()
            if key.startswith("blocks.0.")
        }
    torch.save({"model": {f"module.{key}": value for key, value in whole.items()}}, path.with_suffix(".pt"))
    return path.with_suffix(".pt")


def test_the_hash_sees_every_tensor_and_no_order(weights: Path) -> None:
    state = load_file(weights)
    assert weights_hash(state) == weights_hash(dict(reversed(state.items())))
    changed = {**state, "norm.bias": state["norm.bias"] + 1e-6}
    assert weights_hash(state) != weights_hash(changed)
    assert load_backbone(VIT, checkpoint=weights, image_size=SIZE).weights != weights_hash(changed)


def test_loading_leaves_the_random_generator_alone(weights: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    load_backbone(VIT, checkpoint=weights, image_size=SIZE)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "vit_tyni_patch16_224",
            "must be a model of timm. Got 'vit_tyni_patch16_224'. Did you mean 'vit_tiny_patch16_224'",
        ),
        ("resnet50.a1_in1kk", "Got 'a1_in1kk'. Did you mean 'a1_in1k'"),
    ],
)
def test_a_misspelt_model_gets_the_nearest_names(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_backbone(name)
    assert message in str(error.value)


def test_an_unreachable_hub_says_what_to_do_instead() -> None:
    with pytest.raises(HaceError) as error:
        load_backbone("resnet10t.c3_in1k")
    text = str(error.value)
    assert text.startswith(
        "The weights of resnet10t.c3_in1k cannot be downloaded: they are not in the cache, and HF_HUB_OFFLINE is set. "
    )
    assert "fetch model.safetensors from https://huggingface.co/timm/resnet10t.c3_in1k, " in text
    assert text.endswith("--checkpoint model.safetensors.")


def test_a_model_without_published_weights_needs_a_file() -> None:
    with pytest.raises(
        ConfigError, match=r"timm has no weights for resnet50_mlp. Give a file with --checkpoint"
    ):
        load_backbone("resnet50_mlp")


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("hacked",)


def test_a_hostile_pickle_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": Hostile()}, "weights.pt")
    with pytest.raises(
        FormatError, match=r"cannot be read as weights: it wants to call posix\.mkdir\. .*never runs code"
    ):
        read_state_dict("weights.pt")
    assert not Path("hacked").exists()


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_truncated_checkpoint_is_refused(tmp_path: Path, suffix: str) -> None:
    path = save_weights(VIT, tmp_path / f"weights{suffix}", img_size=SIZE)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(FormatError, match=r"cannot be read as weights|is damaged"):
        read_state_dict(path)


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        FormatError, match=r"--checkpoint must be a file with weights\. Got .*none\.pt, which is not a file"
    ):
        load_backbone(VIT, checkpoint=tmp_path / "none.pt")


def test_weights_of_another_model_are_refused_with_the_difference(tmp_path: Path, weights: Path) -> None:
    with pytest.raises(FormatError, match=r"does not fit the model: 'conv1.0.weight' is missing; .* more\. "):
        load_backbone("resnet10t", checkpoint=weights)
    state = load_file(weights)
    torch.save({**state, "stray.weight": torch.zeros(1)}, tmp_path / "more.pt")
    with pytest.raises(FormatError, match=r"does not fit the model: 'stray.weight' is not in the model\. "):
        load_backbone(VIT, checkpoint=tmp_path / "more.pt", image_size=SIZE)
    theirs = {f"backbone.{i:03d}": tensor for i, tensor in enumerate(state.values())}
    torch.save(theirs, tmp_path / "theirs.pt")
    with pytest.raises(FormatError, match=r"have other names here\. Rename them as docs/features\.md"):
        load_backbone(VIT, checkpoint=tmp_path / "theirs.pt", image_size=SIZE)
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(FormatError, match=r"must hold a state dict, names with tensors\. Got a list\."):
        load_backbone(VIT, checkpoint=tmp_path / "list.pt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": "max"}, "pool must be one of 'auto', 'token', 'avg'. Got 'max'"),
        ({"dtype": "fp16"}, "dtype must be one of 'float32', 'bf16'. Got 'fp16'"),
        ({"image_size": 0}, "image_size must be a positive number of pixels. Got 0"),
        ({"crop_pct": 1.5}, "crop_pct must be above 0 and at most 1. Got 1.5"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_backbone(VIT, **options)


def test_a_class_token_that_is_not_there(tmp_path: Path) -> None:
    path = save_weights("resnet10t", tmp_path / "weights.pt")
    with pytest.raises(ConfigError, match=r"ResNet has no class token. Use --readout avg or auto"):
        load_backbone("resnet10t", checkpoint=path, image_size=SIZE, pool="token")


def test_without_timm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(
        HaceError, match=r'^A model of photos needs the package timm\. .* pip install "\.\[train\]"\.$'
    ):
        load_backbone(VIT)
