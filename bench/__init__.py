"""Benchmarks of the product, its parts, and comparable systems. No product code imports them.

- `commands`: the command line, `python -m bench`
- `streams`: one run of all services with engines that answer at once; `turns`: runs in alternation, and their medians
- `engine`: search beside bare vLLM
- `gateway`: the gateway beside LiteLLM's proxy; `load`: the client of both; `litellm`: the peer
- `learner`: decide, update, fold, beside public libraries
- `closed`: how long a learner takes to recover, also after a long life; `kills`: any service, after kill -9
- `audit`: what the audit of a log takes; `history`: the log that it reads
- `memory`: the memory of a whole deployment
- `soak`: slopes of memory, descriptors and loop lag under hours of traffic
- `hostile`: what one hostile tenant does to the others
"""
