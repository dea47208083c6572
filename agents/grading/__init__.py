"""Grading: compare an answer with the query's reference.

grade        graders, references, and where an answer is found; start with this module
quantities   numbers, units and words, compared exactly
programs     list programs, the language of answers to code questions
compiled     patterns and JSON Schemas
pool         mathematics, programs, patterns and schemas, graded in processes that can be killed (`worker`)
"""
