"""The rooms as faust sees them: each binds the pure code of one package to its topics."""
