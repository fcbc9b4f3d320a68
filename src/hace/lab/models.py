"""Models for end-to-end training: the paper's six architectures and any other of timm's, from random weights.

model = build_model("resnet18", loss.num_outputs, image_size=32, seed=0)
print(load_weights(model, "other_head.safetensors", head="drop"))       # fine-tuning

The paper prints one line of a table for each model and no word on how a 32 px image enters it. What was chosen for that
is in `ARCHITECTURES`; `hace.paper.ASSUMPTIONS` gives the reasons.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from hace.checks import check_choice, require
from hace.errors import ConfigError, HaceError, nearest
from hace.files.reading import optional

if TYPE_CHECKING:  # the names of the models are wanted where torch is not: by the command line's help
    from torch import Tensor, nn

    from hace.losses.poincare_head import PoincareBall

SMALL_IMAGE = 48  # px; up to here a model takes its form for small images
_HEADS = ("fit", "drop")


class Stem(NamedTuple):
    """Another first convolution: the module it replaces, its size, and how it is initialised."""

    module: str
    kernel: int
    stride: int
    padding: int
    init: str  # "kaiming" as in ResNets, "trunc_normal" as in ConvNeXt


@dataclass(frozen=True)
class Architecture:
    """One of the paper's models."""

    title: str  # its name in the paper
    timm_name: str  # with which it is built for images above `SMALL_IMAGE`
    kind: str  # "Conv" or "Attn", as printed
    params: float  # millions, as printed; they count 224 px and 1,000 classes
    small: Mapping[str, Any] = field(default_factory=dict)  # options of timm's for small images
    stem: Stem | None = None  # the first convolution for small images
    without: tuple[str, ...] = ()  # modules left out for small images
    dropout: tuple[str, ...] = ("drop_rate",)  # options of timm's that take the dropout rate


_SWIN = {"patch_size": 2, "window_size": 4}
_VIT_DROPOUT = ("pos_drop_rate", "proj_drop_rate")
_RESNET: dict[str, Any] = {"stem": Stem("conv1", 3, 1, 1, "kaiming"), "without": ("maxpool",)}

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "resnet18": Architecture("ResNet-18", "resnet18", "Conv", 11.7, **_RESNET),
        "resnet34": Architecture("ResNet-34", "resnet34", "Conv", 21.8, **_RESNET),
        "resnet50": Architecture("ResNet-50", "resnet50", "Conv", 25.6, **_RESNET),
        "convnext_tiny": Architecture(
            "ConvNeXt-T", "convnext_tiny", "Conv", 28.6, stem=Stem("stem.0", 2, 2, 0, "trunc_normal")
        ),
        "swin_tiny": Architecture("Swin-T", "swin_tiny_patch4_window7_224", "Attn", 28.3, _SWIN),
        "vit_base": Architecture(
            "ViT-B/16", "vit_base_patch16_224", "Attn", 86.0, {"patch_size": 4}, dropout=_VIT_DROPOUT
        ),
    }
)


def build_model(
    name: str,
    num_outputs: int,
    *,
    image_size: int,
    dropout: float = 0.0,
    drop_path: float = 0.0,
    ball: PoincareBall | None = None,
    seed: int | None = None,
) -> nn.Module:
    """A model with random weights. Nothing is downloaded.

    Example:
        >>> import torch
        >>> model = build_model("resnet18", 120, image_size=32, seed=0)
        >>> model(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 120])
    """
    import torch

    for option, value in {"num_outputs": num_outputs, "image_size": image_size}.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        require(option, value, "a whole number of at least 1", whole and value >= 1)
    for option, value in {"dropout": dropout, "drop_path": drop_path}.items():
        require(option, value, "a rate of at least 0 and below 1", 0 <= value < 1)
    timm = optional("timm", "A model of images", "train")
    known = ARCHITECTURES.get(name)
    timm_name = known.timm_name if known else _checked_name(name, timm)
    small = known if known and image_size <= SMALL_IMAGE else None
    options = {**(small.small if small else {}), "drop_path_rate": drop_path}
    if dropout:
        options |= dict.fromkeys(known.dropout if known else ("drop_rate",), dropout)
    if getattr(timm.get_pretrained_cfg(timm_name), "fixed_input_size", False):
        options["img_size"] = image_size
    with nullcontext() if seed is None else torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        try:
            model = _create(timm, timm_name, num_outputs, options)
            if small:
                _shrink(model, small)
            if ball is not None:
                _bend(model, name, ball)
            _check_patches(model, name, image_size)
            with torch.no_grad():
                shape = model.eval()(torch.zeros(1, 3, image_size, image_size)).shape
        except HaceError:
            raise
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(f"{name} cannot be built for images of {image_size} px: {error}") from error
    if shape != (1, num_outputs):
        raise ConfigError(
            f"{name} answers an image with the shape {tuple(shape[1:])}, and should with {num_outputs} logits. "
            "It is not an image classifier: choose another model."
        )
    return model.train()


def check_model_name(name: str) -> None:
    """Refuse a model that is neither one of `ARCHITECTURES` nor timm's, without building it."""
    if name not in ARCHITECTURES:
        _checked_name(name, optional("timm", "A model of images", "train"))


def zero_head(model: Any) -> bool:
    """Set the last linear layer to zeros, so that all classes start alike; False where a model does not end in one."""
    from torch import nn

    last = model.get_classifier()
    if not isinstance(last, nn.Linear):
        return False
    nn.init.zeros_(last.weight)
    if last.bias is not None:
        nn.init.zeros_(last.bias)
    return True


def load_weights(model: Any, path: str | Path, *, head: str = "fit") -> str:
    """Fill a model with the weights of a file, for fine-tuning."""
    from hace.files.weights import fill, read_state_dict

    check_choice("head", head, _HEADS)
    state = read_state_dict(path)
    size = _head_size(model, state)
    own = model.num_classes
    if head == "fit":
        if size != own:
            has = "no head" if size is None else f"a head of {size} outputs"
            raise ConfigError(
                f"{path} has {has}, and the model one of {own}. Load it with head='drop' to take everything "
                "but the head, which then starts from its initialisation."
            )
        fill(model, state, path)
        return f"Loaded all weights from {path}, with the head of {own} outputs."
    body = copy.deepcopy(model)
    body.reset_classifier(0)
    fill(body, state, path)  # it tolerates the file's head
    model.load_state_dict(body.state_dict(), strict=False)
    has = "none" if size is None else f"one of {size}"
    return f"Loaded the weights from {path}; the head of {own} outputs keeps its initialisation (the file has {has})."


def _checked_name(name: str, timm: Any) -> str:
    """A valid timm name, unchanged. Others are refused here: timm would look for some of them on the network."""
    architecture, dot, tag = name.partition(".")
    if not timm.is_model(architecture):
        hint = nearest(name, [*ARCHITECTURES, *timm.list_models()])
        raise ConfigError(
            f"model must be one of {', '.join(ARCHITECTURES)} or a name of timm's. Got {name!r}.{hint}"
        )
    if dot:
        raise ConfigError(
            f"model {name!r} names weights, {tag!r}, and models start from random ones here: give {architecture!r}. "
            "Weights come from a file, see load_weights."
        )
    return name


def _create(timm: Any, name: str, num_outputs: int, options: Mapping[str, Any]) -> nn.Module:
    """timm's model. Rates of 0 are given all the same, since some models have another default; not all have the option."""
    try:
        return timm.create_model(name, pretrained=False, num_classes=num_outputs, **options)
    except TypeError as error:
        refused = next((key for key in options if key.endswith("_rate") and f"'{key}'" in str(error)), None)
        if refused is None:
            raise
        if options[refused]:
            ours = "drop_path" if refused == "drop_path_rate" else "dropout"
            got = options[refused]
            raise ConfigError(f"{ours} must be 0 for {name}, which has no such option. Got {got}.") from None
        return _create(timm, name, num_outputs, {key: v for key, v in options.items() if key != refused})


def _shrink(model: nn.Module, architecture: Architecture) -> None:
    """Give a model its form for small images, as far as timm has no option for it."""
    from torch import nn

    for module in architecture.without:
        model.set_submodule(module, nn.Identity())
    if architecture.stem is None:
        return
    module, kernel, stride, padding, init = architecture.stem
    old: Any = model.get_submodule(module)
    bias = old.bias is not None
    new = nn.Conv2d(old.in_channels, old.out_channels, kernel, stride, padding, bias=bias)
    if init == "kaiming":
        nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
    else:
        nn.init.trunc_normal_(new.weight, std=0.02)
    if new.bias is not None:
        nn.init.zeros_(new.bias)
    model.set_submodule(module, new)


def _bend(model: Any, name: str, ball: PoincareBall) -> None:
    """Put hyperplanes of a Poincare ball in the place of the last linear layer."""
    from torch import nn

    from hace.losses.poincare_head import PoincareHead

    last = model.get_classifier()
    if not isinstance(last, nn.Linear):
        raise ConfigError(
            f"head.name must be linear with {name}, which does not end in one linear layer. Got poincare."
        )
    place = next(key for key, module in model.named_modules() if module is last)
    new = PoincareHead(last.in_features, last.out_features, curvature=ball.curvature, clip=ball.clip)
    model.set_submodule(place, new)


def _check_patches(model: Any, name: str, image_size: int) -> None:
    """The pixels beyond the last whole patch would be left out without a word."""
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    if isinstance(patch, tuple) and image_size % patch[0]:
        raise ConfigError(
            f"image_size must be a multiple of {patch[0]} px, the side of the patches of {name}. Got {image_size}."
        )


def _head_size(model: Any, state: Mapping[str, Tensor]) -> int | None:
    """The outputs of the head in a file, under timm's name for it or the usual ones of the authors'."""
    heads = getattr(model, "pretrained_cfg", {}).get("classifier") or ()
    heads = (heads,) if isinstance(heads, str) else tuple(heads)
    for head in (*heads, "head", "fc", "classifier"):
        if f"{head}.weight" in state:
            return state[f"{head}.weight"].shape[0]
    return None
