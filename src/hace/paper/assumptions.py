"""What we assume where the paper says nothing: one list, printed by `hace study --list` and in reports."""

from __future__ import annotations

from hace.lab.train.models import SMALL_IMAGE

PROBE_RATE = 8.0  # the base rate of probes under the paper's protocol

ASSUMPTIONS: tuple[str, ...] = (
    f"Small images: up to {SMALL_IMAGE} px each of the six models takes a form of its own, given below; above that its "
    "standard form. Other timm models keep theirs at every size.",
    "ResNets at 32 px: a 3x3 convolution of stride 1 instead of 7x7 of stride 2, and no max-pooling, so that the stages "
    "see 32, 16, 8 and 4 px. The standard stem would leave 8 px to the first stage and 1 to the last.",
    "ConvNeXt-T at 32 px: patches of 2x2 instead of 4x4, so that the stages see 16, 8, 4 and 2 px. With the standard stem "
    "the 7x7 kernels of the last stage would stand on a single position.",
    "Swin-T at 32 px: patches of 2x2 and windows of 4x4, so that the stages see 16, 8, 4 and 2 positions a side and the "
    "shifted windows of the first two have something to shift. Patches of 4 would fit into one window of 7 from the second "
    "stage on.",
    "ViT-B/16 at 32 px: patches of 4x4, which are 64 tokens. Patches of 16 would be 4 tokens of 768 numbers each.",
    "Dropout 0.1 of ViT-B/16: after the sum with the positions and after every linear layer but those of queries, keys and "
    "values, as its authors say; none before the classifier. Elsewhere a dropout would stand before the classifier.",
    "Stochastic depth: none. The table has no column for it; the authors of ConvNeXt-T and Swin-T use 0.1 and 0.2.",
    "Initialisation: timm's defaults. For ResNets the last batch norm of a block starts at weight 0, for ViT-B/16 linear "
    "layers at a truncated normal of 0.02; both differ from the models' own papers.",
    "Image sizes: 32 px for CIFAR-100 and 224 px for FGVC-Aircraft and NABirds, as the table of data sets says.",
    "Augmentation: at 32 px a random crop of the image with 4 px of zeros around it, and a flip; at 224 px a random part of "
    "8 to 100 % of the area, and a flip. Tests see the whole image at 32 px, and at 224 px the middle of the image with "
    "its shorter side at 256. No mixup, CutMix, RandAugment or erasing, which the authors of ConvNeXt and Swin use.",
    "The scheduler 'Lambda' (Swin-T, ViT-B/16) is a linear warm-up to the base rate and a cosine to 0 after it.",
    "Warm-up: 20 epochs for Swin-T, as its authors have; 32 for ViT-B/16, whose authors' 10,000 steps of 4,096 images are "
    "32 epochs of ImageNet. None with CosineAnnealing.",
    "The cosine ends at a rate of 0 and moves with every step, not every epoch.",
    "'Momentum 0.9' of AdamW is its first beta; the second is 0.999.",
    "Weight decay: of every parameter with SGD, as ResNets have it; with AdamW not of biases, norms, positions, class "
    "token, layer scales and biases of relative positions, as the authors of ConvNeXt and Swin do.",
    "Selection: the weights after the last epoch count. The paper does not say whether it takes the last or the best epoch, "
    "nor on what it chooses; its best-of tables choose among runs by the test set.",
    "Early stopping: none; every run has all its epochs.",
    "Seeds: the paper has one run of each kind and names no seed. Ours is 0 where none is given.",
    "SCE's rate in the HACE-anchored pairing: l times d, as the table of learning rates says; one sentence says l / d.",
    "Label smoothing (but for the methods that have it in their name), gradient clipping, averaging of weights: none.",
    "Linear probes: the paper gives neither optimiser nor base rate nor epochs. Assumed: SGD with momentum 0.9, a cosine to "
    f"0, 30 epochs in batches of 256, and a base rate of {PROBE_RATE:g}, where cross-entropy on unit vectors does well.",
    "Methods other than plain HACE and SCE: the paper does not say at which rates they ran. Assumed: every HACE variant has "
    "HACE's six runs (three dilutions, two pairings), every other method SCE's four.",
    "Fair protocol: each dilution is a row of its own with the full grid of rates; the report says which one was best on "
    "held-out samples.",
    "Shuffled tree: every seed has a permutation of its own.",
    "End-to-end training on data sets that the paper does not have takes the paper's recipe for NABirds.",
)
