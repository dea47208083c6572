"""The aggregator: prices a trace, grades an answer, joins feedback, emits rewards."""
