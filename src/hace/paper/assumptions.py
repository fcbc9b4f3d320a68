"""What we assume where the paper says nothing: one list, printed by `hace study --list`, in the guide and in reports."""

from __future__ import annotations

from hace.lab.models import SMALL_IMAGE

PROBE_RATE = 8.0  # the base rate of probes under the paper's protocol

ASSUMPTIONS: tuple[str, ...] = (
    # Models
    f"Small images: up to {SMALL_IMAGE} px each of the six models takes the form given below; above that its standard form. "
    "Other timm models keep theirs at every size.",
    "ResNets at 32 px: a 3x3 convolution of stride 1 instead of 7x7 of stride 2, and no max-pooling, so the stages see 32, 16, "
    "8 and 4 px. The standard stem would leave 8 px to the first stage and 1 to the last.",
    "ConvNeXt-T at 32 px: patches of 2x2 instead of 4x4, so the stages see 16, 8, 4 and 2 px. With the standard stem the 7x7 "
    "kernels of the last stage would see a single position.",
    "Swin-T at 32 px: patches of 2x2 and windows of 4x4, so the stages see 16, 8, 4 and 2 positions per side and the first two "
    "have windows to shift. With patches of 4, one window of 7 would cover everything from the second stage on.",
    "ViT-B/16 at 32 px: patches of 4x4, which are 64 tokens. Patches of 16 would be 4 tokens of 768 numbers each.",
    "Dropout 0.1 of ViT-B/16: after the positions are added and after every linear layer except those of queries, keys and "
    "values, as its authors say; none before the classifier. In other models dropout would act before the classifier.",
    "Stochastic depth: none. The table has no column for it; the authors of ConvNeXt-T and Swin-T use 0.1 and 0.2.",
    "Initialisation: timm's defaults. In ResNets the last batch norm of a block starts at weight 0; in ViT-B/16 linear layers "
    "start at a truncated normal of 0.02. Both differ from the models' own papers.",
    # Images
    "Image sizes: 32 px for CIFAR-100 and 224 px for FGVC-Aircraft and NABirds, as in the table of data sets.",
    "Normalisation: by the channel means and deviations of the training images at 32 px, by ImageNet's at 224 px.",
    "FGVC-Aircraft banner: the 20 px at the bottom of each image, which name the photographer, are cut off, as the authors of "
    "the data set ask.",
    "NABirds boxes: not used; models see whole images.",
    "Augmentation: at 32 px a random crop of the image padded by 4 px of zeros, and a flip; at 224 px a random part of 8 to "
    "100 % of the area, and a flip. Tests see the whole image at 32 px, and at 224 px the centre of the image with its shorter "
    "side at 256. No mixup, CutMix, RandAugment or erasing, which the authors of ConvNeXt and Swin use.",
    # Optimisation
    "The scheduler 'Lambda' (Swin-T, ViT-B/16): a linear warm-up to the base rate, then a cosine to 0.",
    "Warm-up: 20 epochs for Swin-T, as its authors have; 32 for ViT-B/16, whose authors' 10,000 steps of 4,096 images are 32 "
    "epochs of ImageNet. None with CosineAnnealing.",
    "The cosine ends at a rate of 0 and moves with every step, not every epoch.",
    "'Momentum 0.9' of AdamW is its first beta; the second is 0.999.",
    "Weight decay: of every parameter with SGD, as ResNets have it; with AdamW not of biases, norms, positions, class token, "
    "layer scales and relative position biases, as the authors of ConvNeXt and Swin do.",
    "Gradient clipping and averaging of weights: none.",
    "Early stopping: none; every run has all its epochs.",
    "Selection: the weights after the last epoch count. The paper does not say whether it takes the last or the best epoch, "
    "nor how it chooses; its best-of tables choose among runs on the test set.",
    "Seeds: the paper names none, and describes one run per setting end to end. Ours is 0 by default.",
    # Methods
    "SCE's rate in the HACE-anchored pairing: l times d, as in the table of learning rates; one sentence says l / d.",
    "Rates of methods other than plain HACE and SCE: every HACE variant has HACE's six runs (three dilutions, two pairings), "
    "every other method SCE's four.",
    "Label smoothing: 0 except for the methods named after it. For those 0.1, uniform over all leaves with the true one "
    "included; the paper gives this value for HACE only, and we use it for SCE too.",
    "Soft labels: the distance is the height of the lowest common ancestor (`lca_height`), divided by its largest value; on "
    "NABirds, whose leaves differ in depth, other conventions give other labels.",
    'HXE: weights decay toward the leaves (`decay="depth"`) and are not normalised over the tree (`normalize=None`), so that '
    "alpha = 0 is cross-entropy.",
    "Families and manufacturers: for every method the node of the level with the highest accumulated mass counts, as the paper "
    "words it. Reports also have the other rule, the best class carried up.",
    # Probes
    "DINOv2-Large: images are resized to 256 px and cropped to 224, as in its authors' linear evaluation; features are the "
    "class token after the last norm, scaled to length 1.",
    f"Probes: the paper gives neither optimiser nor base rate nor epochs. Ours: SGD with momentum 0.9, a cosine to 0, 30 "
    f"epochs in batches of 256, and a base rate of {PROBE_RATE:g}, where cross-entropy on unit vectors does well.",
    # Beyond the paper
    "Data sets that the paper does not have: end to end they take its recipe for NABirds.",
)
