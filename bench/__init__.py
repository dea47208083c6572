"""Benchmarks of the product, its parts, and comparable systems. No product code imports them.

- `commands`: the command line, `python -m bench`
- `streams`: one run of all services with engines that answer at once; `turns`: alternating runs, and their medians
- `engine`: search compared with bare vLLM
- `gateway`: the gateway compared with LiteLLM's proxy; `load`: the client for both; `litellm`, `peers`: the proxy
- `ttft`: time to the first token of a stream; `latency`: the time of live queries by component
- `traces`: the cost of traces
- `learner`: decide, update and fold, compared with public libraries; `refit`: the contextual policy's refits
- `closed`: recovery time of a learner with a long history; `kills`: recovery of any service after kill -9
- `audit`: time and memory of an audit; `history`: the log it reads
- `memory`: the memory of a whole deployment; `open_rows`: the memory of open rows in the decider
- `soak`: growth of memory, descriptors and loop lag under hours of traffic
- `hostile`: the effect of one hostile tenant on the others
"""
