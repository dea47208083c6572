"""Is an answer right? Its last box against the query's reference.

grade        extraction, references, and the exact rules first: the module to begin with
quantities   numbers, units and words, compared exactly
programs     list programs, the language of answers to code questions
pool         mathematics and programs, in processes that can be killed; `worker` is such a process
"""
