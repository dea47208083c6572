"""Grading: compare an answer with the query's reference.

grade        graders, references, where an answer is read, and the exact rules first: the module to begin with
quantities   numbers, units and words, compared exactly
programs     list programs, the language of answers to code questions
compiled     patterns and JSON Schemas
pool         mathematics, programs, patterns and schemas, in processes that can be killed; `worker` is such a process
"""
