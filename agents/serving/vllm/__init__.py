"""vLLM in this process: callers submit from any thread, and one thread owns and steps every engine.

settings     what to host, the environment variables vLLM needs, and how much KV cache an engine gets
host         the thread-safe face: submit, run, load, unload, close
loop         the engine thread's body; steps every engine with work in turn
adapter      the one file that speaks vLLM's API
requests     token ids in, text or class probabilities out; what is answered together; counters of one engine
skywork      a process reward model vLLM has no class for
"""
