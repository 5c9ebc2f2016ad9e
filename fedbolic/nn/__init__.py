"""Layers and networks; nothing here knows of federations."""

from fedbolic.nn.classify import LorentzMLR, PoincareMLR
from fedbolic.nn.linear import LorentzFC, LorentzLinear, PoincareLinear

__all__ = [
    "LorentzFC",
    "LorentzLinear",
    "LorentzMLR",
    "PoincareLinear",
    "PoincareMLR",
]
