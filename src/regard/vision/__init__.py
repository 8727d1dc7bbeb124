"""Attention over images: gates of channels and positions, and windows of positions.

All take (batch, channel, height, width), and return an `Attended` under `ImageMechanism`; CBAM,
which has two gates, a `BlockOutput` of two. `OutputOnly` stands behind one in an `nn.Sequential`.
"""

from regard.vision.axial import Axial
from regard.vision.cbam import CBAM
from regard.vision.channel_gate import ChannelGate
from regard.vision.contract import ImageMechanism
from regard.vision.gate import Gate
from regard.vision.generalised_spatial import GeneralisedSpatial
from regard.vision.grid_sinusoids import GridSinusoids
from regard.vision.local_self_attention import LocalSelfAttention
from regard.vision.local_stem import LocalStem
from regard.vision.multi_head_convolutional import MultiHeadConvolutional
from regard.vision.output_only import OutputOnly
from regard.vision.pooling import MaxPooling, MeanPooling
from regard.vision.shifted_window import ShiftedWindow
from regard.vision.spatial_gate import SpatialGate
from regard.vision.squeeze_excitation import SqueezeExcitation

__all__ = [
    "CBAM",
    "Axial",
    "ChannelGate",
    "Gate",
    "GeneralisedSpatial",
    "GridSinusoids",
    "ImageMechanism",
    "LocalSelfAttention",
    "LocalStem",
    "MaxPooling",
    "MeanPooling",
    "MultiHeadConvolutional",
    "OutputOnly",
    "ShiftedWindow",
    "SpatialGate",
    "SqueezeExcitation",
]
