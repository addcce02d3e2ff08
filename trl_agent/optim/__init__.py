"""Optimizers that torch and transformers do not ship."""

from .muon import MuonWithAdamW, muon_with_adamw

__all__ = ["MuonWithAdamW", "muon_with_adamw"]
