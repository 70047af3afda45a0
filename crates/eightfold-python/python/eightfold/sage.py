"""SageAttention's name: ``from eightfold.sage import sageattn``."""

from ._attention import sageattn

__all__ = ["sageattn"]
