"""Memories and what came before attention: multiplicative units, hypernetworks, NTM, DNC."""

from regard.memory import addressing
from regard.memory.dnc import DNC, DNCState
from regard.memory.fast_weights import FastWeights
from regard.memory.hyper_lstm import HyperLSTM, HyperOutput, HyperState
from regard.memory.hypernetwork import GeneratedConv2d, KernelGenerator
from regard.memory.machine import MachineOutput
from regard.memory.multiplicative import Bilinear, Gating, LowRankBilinear
from regard.memory.ntm import NTM, NTMState
from regard.memory.sigma_pi import SigmaPi, all_conjuncts

__all__ = [
    "DNC",
    "NTM",
    "Bilinear",
    "DNCState",
    "FastWeights",
    "Gating",
    "GeneratedConv2d",
    "HyperLSTM",
    "HyperOutput",
    "HyperState",
    "KernelGenerator",
    "LowRankBilinear",
    "MachineOutput",
    "NTMState",
    "SigmaPi",
    "addressing",
    "all_conjuncts",
]
