"""Every attention over images, in each of its forms. A class without an entry fails the suite."""

from torch import nn

from regard.mechanisms import RelativeBias, Rotary
from regard.vision import (
    CBAM,
    Axial,
    ChannelGate,
    GeneralisedSpatial,
    LocalSelfAttention,
    LocalStem,
    MaxPooling,
    MeanPooling,
    MultiHeadConvolutional,
    ShiftedWindow,
    SpatialGate,
    SqueezeExcitation,
)

#: name -> (build, sizes); images have 8 channels, 6 rows and 5 columns where sizes do not say.
MEMBERS = {
    "squeeze_excitation": (lambda: SqueezeExcitation(8, reduction=2), {}),
    "squeeze_excitation_parts": (
        lambda: SqueezeExcitation(
            *(8,),
            hidden=3,
            bias=False,
            pooling=MaxPooling(),
            activation=nn.SiLU(),
            gate=nn.Hardsigmoid(),
        ),
        {},
    ),
    "channel_gate": (lambda: ChannelGate(8, reduction=4), {}),
    "channel_gate_mean": (lambda: ChannelGate(8, hidden=3, poolings=[MeanPooling()]), {}),
    "spatial_gate": (SpatialGate, {}),
    "spatial_gate_bare": (lambda: SpatialGate(kernel=3, norm=nn.Identity()), {}),
    "cbam": (lambda: CBAM(8, channel=ChannelGate(8, reduction=2)), {}),
    "multi_head_convolutional": (lambda: MultiHeadConvolutional(8), {}),
    "multi_head_convolutional_wide": (
        lambda: MultiHeadConvolutional(8, kernels=(2, 3), reduction=0.5),
        {},
    ),
    "local_self_attention": (lambda: LocalSelfAttention(8, 2, size=3), {}),
    "local_self_attention_wide": (
        lambda: LocalSelfAttention(8, 3, size=7, out_channels=12, groups=2, scale=0.5),
        {},
    ),
    "local_stem": (lambda: LocalStem(8, 12), {}),
    "generalised_spatial": (lambda: GeneralisedSpatial(8, 2, stride=2), {}),
    "generalised_spatial_content": (lambda: GeneralisedSpatial(8, 2, terms="1000"), {}),
    "generalised_spatial_keys": (lambda: GeneralisedSpatial(8, 2, terms="0010"), {}),
    "generalised_spatial_offsets": (lambda: GeneralisedSpatial(8, 2, terms="0101"), {}),
    "axial_rows": (lambda: Axial(8, 2, axis="row"), {}),
    "axial_columns": (lambda: Axial(8, 2, axis="column", position=RelativeBias(2)), {}),
    "axial_rotary": (lambda: Axial(8, 2, axis="row", position=Rotary()), {}),
    "shifted_window": (lambda: ShiftedWindow(8, 2, window=3, shift=1), {}),
    "shifted_window_still": (lambda: ShiftedWindow(8, 2, window=2), {}),
}

#: Laws that cannot be seen on a member. One that becomes visible, or stops being so, fails.
NOT_SEEN: dict[str, tuple[str, ...]] = {
    member: ("gates_multiply",)  # a mixture of values, not a factor
    if member.startswith(("local_", "generalised_", "axial_", "shifted_"))
    else ("mixes", "output_of_mixed")  # a factor, not a mixture of values
    for member in MEMBERS
}
NOT_SEEN["local_stem"] += ("output_of_mixed",)  # positions are pooled behind it
