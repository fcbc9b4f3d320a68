"""The six architectures: sizes, stems, gradients, seeds; weights from files with another head; bad input."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from hace import HACELoss, cifar100_hierarchy
from hace.errors import ConfigError, FormatError
from hace.files.weights import weights_hash
from hace.lab.models import ARCHITECTURES, build_model, check_model_name, load_weights
from hace.losses.poincare_head import PoincareBall, PoincareHead

# The paper's column, with the decimals that it has.
PRINTED = {
    "resnet18": "11.7",
    "resnet34": "21.8",
    "resnet50": "25.6",
    "convnext_tiny": "28.6",
    "swin_tiny": "28.3",
    "vit_base": "86",
}
# The sides of the maps that the four stages give; for ViT the number of tokens.
STAGES = {
    "resnet18": {32: [32, 16, 8, 4], 64: [16, 8, 4, 2], 65: [17, 9, 5, 3], 224: [56, 28, 14, 7]},
    "resnet34": {32: [32, 16, 8, 4], 224: [56, 28, 14, 7]},
    "resnet50": {32: [32, 16, 8, 4], 224: [56, 28, 14, 7]},
    "convnext_tiny": {32: [16, 8, 4, 2], 64: [16, 8, 4, 2], 224: [56, 28, 14, 7]},
    "swin_tiny": {32: [16, 8, 4, 2], 224: [56, 28, 14, 7]},
    "vit_base": {32: [1 + 8 * 8], 224: [1 + 14 * 14], 384: [1 + 24 * 24]},
}


@cache
def on_meta(name: str, outputs: int, size: int, **options: float) -> nn.Module:
    """Shapes without weights; a model is built once for all tests."""
    with torch.device("meta"):
        return build_model(name, outputs, image_size=size, **options)


def millions(model: nn.Module) -> float:
    return sum(parameter.numel() for parameter in model.parameters()) / 1e6


@pytest.mark.parametrize("key", list(PRINTED))
def test_parameters_at_1000_classes_are_the_paper_s(key: str) -> None:
    printed = PRINTED[key]
    count = millions(on_meta(key, 1000, 224))
    if "." in printed:
        assert f"{count:.1f}" == printed
    else:
        assert int(count) == int(printed)  # 86.6: printed cut off, or counted without the head (85.8)
    assert ARCHITECTURES[key].params == float(printed)


def test_the_six_and_no_more() -> None:
    assert list(ARCHITECTURES) == list(PRINTED)
    assert [a.kind for a in ARCHITECTURES.values()] == ["Conv"] * 4 + ["Attn"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("key", list(PRINTED))
def test_the_form_for_small_images_has_about_the_same_size(key: str) -> None:
    assert millions(on_meta(key, 1000, 32)) == pytest.approx(millions(on_meta(key, 1000, 224)), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("key", "size"), [(key, size) for key, sizes in STAGES.items() for size in sizes])
def test_what_the_stages_see(key: str, size: int) -> None:
    model = on_meta(key, 1000, size)
    stage = {"resn": r"layer\d", "conv": r"stages\.\d", "swin": r"layers\.\d", "vit_": r"blocks\.11"}[key[:4]]
    shapes: list[tuple[int, ...]] = []
    for name, module in model.named_modules():
        if re.fullmatch(stage, name):
            module.register_forward_hook(lambda _m, _i, y: shapes.append(tuple(y.shape[1:])))
    model(torch.zeros(2, 3, size, size, device="meta"))
    sides = [
        shape[0 if key[:4] in ("swin", "vit_") else 1] for shape in shapes
    ]  # (h, w, C), (T, C) or (C, h, w)
    assert sides == STAGES[key][size]


@pytest.mark.slow
def test_stems_at_32_px_and_at_224() -> None:
    resnet, large = on_meta("resnet18", 1000, 32), on_meta("resnet18", 1000, 224)
    assert resnet.conv1.weight.shape == (64, 3, 3, 3)
    assert (resnet.conv1.stride, resnet.conv1.padding, resnet.conv1.bias) == ((1, 1), (1, 1), None)
    assert isinstance(resnet.maxpool, nn.Identity)
    assert large.conv1.weight.shape == (64, 3, 7, 7)
    assert isinstance(large.maxpool, nn.MaxPool2d)
    assert on_meta("convnext_tiny", 1000, 32).stem[0].weight.shape == (96, 3, 2, 2)
    assert on_meta("convnext_tiny", 1000, 224).stem[0].weight.shape == (96, 3, 4, 4)
    assert on_meta("vit_base", 1000, 32).patch_embed.proj.weight.shape == (768, 3, 4, 4)
    assert on_meta("vit_base", 1000, 224).patch_embed.proj.weight.shape == (768, 3, 16, 16)
    assert on_meta("resnet18", 10, 64).conv1.kernel_size == (7, 7)
    swin = on_meta("swin_tiny", 1000, 32)
    assert swin.patch_embed.proj.weight.shape == (96, 3, 2, 2)
    windows = [(stage.blocks[1].window_size, stage.blocks[1].shift_size) for stage in swin.layers]
    assert windows == [((4, 4), (2, 2)), ((4, 4), (2, 2)), ((4, 4), (0, 0)), ((2, 2), (0, 0))]


@pytest.mark.slow
def test_new_stems_are_initialised_as_their_kin() -> None:
    resnet = build_model("resnet18", 10, image_size=32, seed=0)
    assert resnet.conv1.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.1)  # He, fan out
    convnext = build_model("convnext_tiny", 10, image_size=32, seed=0)
    assert convnext.stem[0].weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not convnext.stem[0].bias.any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "key",
    [
        *("resnet18", "convnext_tiny", "swin_tiny"),
        *(pytest.param(key, marks=pytest.mark.long) for key in ("resnet34", "resnet50", "vit_base")),
    ],
)
def test_a_step_on_cifar_sized_images_lowers_the_loss(key: str) -> None:
    loss = HACELoss(cifar100_hierarchy(), dilution=0.5)
    assert loss.num_outputs == 120
    model = build_model(key, loss.num_outputs, image_size=32, seed=0)
    assert model.training
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4, 3, 32, 32, generator=generator)
    labels = torch.tensor([0, 17, 42, 99])
    before = loss(model(images), labels)
    before.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients.values())
    norm = torch.stack([g.norm() for g in gradients.values() if g is not None]).norm()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.02 * parameter.grad / norm
        assert loss(model(images), labels) < before - 1e-3


def test_a_hyperbolic_head_takes_the_place_of_the_linear_one() -> None:
    model = build_model("test_vit", 7, image_size=32, ball=PoincareBall(0.5, 2.0), seed=0)
    assert isinstance(model.get_classifier(), PoincareHead)
    assert model.get_classifier().ball == PoincareBall(0.5, 2.0)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 7)
    with pytest.raises(ConfigError, match=r"head.name must be linear with .* Got poincare"):
        build_model("deit_tiny_distilled_patch16_224", 7, image_size=32, ball=PoincareBall())


@pytest.mark.slow
def test_seeds_decide_the_weights_and_spare_the_global_generator() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one, same, other = (
        weights_hash(build_model("resnet18", 7, image_size=32, seed=s).state_dict()) for s in (3, 3, 4)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert one == same != other
    drawn = [weights_hash(build_model("test_vit", 7, image_size=32).state_dict()) for _ in range(2)]
    assert drawn[0] != drawn[1]
    torch.manual_seed(5)
    assert weights_hash(build_model("test_vit", 7, image_size=32).state_dict()) == drawn[0]


@pytest.mark.slow
def test_dropout_of_vit_is_where_its_authors_put_it() -> None:
    for rate in (0.1, 0.0):
        model = on_meta("vit_base", 120, 32, dropout=rate)
        results = {name: m.p for name, m in model.named_modules() if isinstance(m, nn.Dropout)}
        expected = {"pos_drop", "blocks.0.attn.proj_drop", "blocks.0.mlp.drop1", "blocks.11.mlp.drop2"}
        assert {name for name, p in results.items() if p} >= (expected if rate else set())
        assert {p for name, p in results.items() if "attn_drop" in name or "head" in name} <= {0.0}
        assert set(results.values()) <= {0.0, rate}


def test_dropout_of_others_is_before_the_classifier() -> None:
    assert on_meta("resnet18", 120, 32, dropout=0.3).drop_rate == 0.3
    assert on_meta("convnext_tiny", 120, 32, dropout=0.3).head.drop.p == 0.3


@pytest.mark.slow
@pytest.mark.parametrize("key", list(PRINTED))
def test_no_stochastic_depth_unless_asked_for(key: str) -> None:
    def rates(model: nn.Module) -> list[float]:
        return [m.drop_prob or 0.0 for m in model.modules() if type(m).__name__ == "DropPath"]

    assert not any(rates(on_meta(key, 1000, 32)))
    assert max(rates(on_meta(key, 1000, 32, drop_path=0.2))) == pytest.approx(0.2)


@pytest.mark.parametrize("name", ["test_vit", "resnet10t", "dla46_c", "mobilenetv3_small_050"])
def test_any_other_model_of_timm(name: str) -> None:
    model = build_model(name, 9, image_size=32, seed=0)
    assert model.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 9)


def saved(model: nn.Module, path: Path) -> Path:
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save({"model": state, "epoch": 3}, path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "suffix"),
    [
        ("resnet18", ".safetensors"),
        ("convnext_tiny", ".pt"),
        ("swin_tiny", ".safetensors"),
        ("test_vit", ".pt"),
    ],
)
def test_fine_tuning_from_another_head(tmp_path: Path, key: str, suffix: str) -> None:
    source = build_model(key, 100, image_size=32, seed=0)
    path = saved(source, tmp_path / f"weights{suffix}")
    model = build_model(key, 120, image_size=32, seed=1)
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(
        ConfigError, match=r"has a head of 100 outputs, and the model one of 120.*head='drop'"
    ):
        load_weights(model, path)
    assert weights_hash(model.state_dict()) == weights_hash(fresh)  # a refusal changes nothing
    message = load_weights(model, path, head="drop")
    assert "the head of 120 outputs keeps its initialisation (the file has one of 100)" in message
    assert str(path) in message
    head = model.get_classifier()
    head_names = {
        name for name, p in model.state_dict(keep_vars=True).items() if any(p is q for q in head.parameters())
    }
    assert len(head_names) == 2
    for name, value in model.state_dict().items():
        assert torch.equal(value, fresh[name] if name in head_names else source.state_dict()[name]), name
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 120)


def test_a_head_that_fits_is_taken_and_can_be_dropped(tmp_path: Path) -> None:
    source = build_model("test_vit", 12, image_size=32, seed=0)
    path = saved(source, tmp_path / "weights.safetensors")
    model = build_model("test_vit", 12, image_size=32, seed=1)
    fresh = model.head.weight.clone()
    load_weights(model, path, head="drop")
    assert torch.equal(model.head.weight, fresh)
    assert "with the head of 12 outputs" in load_weights(model, path)
    assert weights_hash(model.state_dict()) == weights_hash(source.state_dict())


def test_a_file_without_a_head(tmp_path: Path) -> None:
    path = saved(timm.create_model("test_vit", num_classes=0, img_size=32), tmp_path / "backbone.safetensors")
    model = build_model("test_vit", 12, image_size=32, seed=1)
    with pytest.raises(ConfigError, match="has no head, and the model one of 12"):
        load_weights(model, path)
    assert "(the file has none)" in load_weights(model, path, head="drop")


def test_weights_under_their_authors_names(tmp_path: Path) -> None:
    """ConvNeXt's own files have other names; a head of another size among them is found all the same."""
    source = build_model("test_convnext", 100, image_size=32, seed=0)
    renamed = {}
    for name, value in source.state_dict().items():
        for pattern, new in (
            (r"^stem\.", "downsample_layers.0."),
            (r"^stages\.(\d)\.blocks\.", r"stages.\1."),
            (r"^stages\.(\d)\.downsample\.", r"downsample_layers.\1."),
            ("conv_dw", "dwconv"),
            (r"mlp\.fc", "pwconv"),
            (r"^head\.norm", "norm"),
            (r"^head\.fc", "head"),
        ):
            name = re.sub(pattern, new, name)
        renamed[name] = value.contiguous()
    save_file(renamed, tmp_path / "authors.safetensors")
    model = build_model("test_convnext", 120, image_size=32, seed=1)
    with pytest.raises(ConfigError, match="head of 100 outputs, and the model one of 120"):
        load_weights(model, tmp_path / "authors.safetensors")
    load_weights(model, tmp_path / "authors.safetensors", head="drop")
    assert torch.equal(model.stem[0].weight, source.stem[0].weight)
    same = build_model("test_convnext", 100, image_size=32, seed=1)
    load_weights(same, tmp_path / "authors.safetensors")
    assert weights_hash(same.state_dict()) == weights_hash(source.state_dict())


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    model = build_model("resnet18", 12, image_size=32, seed=0)
    large = saved(build_model("resnet18", 12, image_size=224, seed=0), tmp_path / "large.safetensors")
    with pytest.raises(
        FormatError, match=r"'conv1.weight' has shape \(64, 3, 7, 7\), the model \(64, 3, 3, 3\)"
    ):
        load_weights(model, large)
    other = saved(build_model("test_vit", 12, image_size=32, seed=0), tmp_path / "other.safetensors")
    for head in ("fit", "drop"):
        with pytest.raises(FormatError, match="does not fit the model"):
            load_weights(model, other, head=head)
    with pytest.raises(FormatError, match="which is not a file"):
        load_weights(model, tmp_path / "nowhere.safetensors")
    torch.save({"model": model}, tmp_path / "object.pt")
    with pytest.raises(FormatError, match="never runs code from a file"):
        load_weights(model, tmp_path / "object.pt")
    with pytest.raises(
        ConfigError, match=r"head must be one of 'fit', 'drop'. Got 'dorp'\. Did you mean 'drop'"
    ):
        load_weights(model, large, head="dorp")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet19", {}, "model must be one of resnet18, .* Got 'resnet19'. Did you mean 'resnet18'"),
        ("ResNet-18", {}, "Did you mean 'resnet18'"),
        ("hf-hub:timm/resnet18", {}, "or a name of timm's. Got 'hf-hub:timm/resnet18'"),
        ("local-dir:/tmp", {}, "or a name of timm's"),
        ("", {}, "Got ''"),
        ("resnet18.a1_in1k", {}, "names weights, 'a1_in1k', .* give 'resnet18'"),
        ("resnet18", {"num_outputs": 0}, "num_outputs must be a whole number of at least 1. Got 0"),
        ("resnet18", {"num_outputs": 2.5}, "num_outputs must be a whole number .* Got 2.5"),
        ("resnet18", {"image_size": 0}, "image_size must be a whole number of at least 1. Got 0"),
        ("resnet18", {"dropout": 1.0}, "dropout must be a rate of at least 0 and below 1. Got 1.0"),
        ("resnet18", {"drop_path": float("nan")}, "drop_path must be a rate .* Got nan"),
        ("vit_base", {"image_size": 30}, "image_size must be a multiple of 4 px, the side of the patches"),
        ("vit_base", {"image_size": 230}, "image_size must be a multiple of 16 px"),
        ("convnext_tiny", {"image_size": 1}, "convnext_tiny cannot be built for images of 1 px"),
        ("dla46_c", {"drop_path": 0.1}, "drop_path must be 0 for dla46_c, which has no such option. Got 0.1"),
    ],
)
def test_bad_input(name: str, options: dict, message: str) -> None:
    if not options:
        with pytest.raises(ConfigError, match=message):
            check_model_name(name)
    with pytest.raises(ConfigError, match=message):
        build_model(name, **{"num_outputs": 5, "image_size": 32, **options})
