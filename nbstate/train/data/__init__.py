"""Data for every rank: batches dealt out in rounds, by loaders that move GradientState."""

from nbstate.train.data.loader import PreparedLoader
from nbstate.train.data.prepare import prepare_data_loader, skip_first_batches
from nbstate.train.data.rounds import Round, RoundFacts, deal
from nbstate.train.data.sources import DataPlace

__all__ = [
    "DataPlace",
    "PreparedLoader",
    "Round",
    "RoundFacts",
    "deal",
    "prepare_data_loader",
    "skip_first_batches",
]
