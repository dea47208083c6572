"""The aggregator: prices a trace, grades an answer, joins feedback, emits rewards."""

from agents.aggregator.eflops import Price, price

__all__ = ["price", "Price"]
