"""How possessions are told and asked for, written one by one: {A} who, {x} what, {n} how many."""
# ruff: noqa: E501 - wordings

STARTS = """{A} ~have {n} {x}|{A} ~own {n} {x}|{A} ~start with {n} {x}|there are {n} {x} in {As} {box}|{A} ~keep {n} {x}
in a {box}|{A} ~have a collection of {n} {x}|at first {A} ~have {n} {x}|{A} ~have a {box} with {n} {x}|{n} {x} belong to {A}
|in {As} {box} there are {n} {x}|{A} already ~have {n} {x}|{A} ~hold {n} {x}|{A} ~begin with {n} {x}|{A} ~bring {n} {x}
|{A} ~count {n} {x}|{A} ~have {n} {x} at home|the {box} of {A} holds {n} {x}""".replace("\n", " ").split("|")
ENDS = """now {he} ~have {n} {x}|in the end {A} ~have {n} {x}|{he} ~have {n} {x} left|{A} now ~have {n} {x}|{n} {x} are left
|that leaves {him} with {n} {x}|{he} ~end up with {n} {x}|at the end {he} ~count {n} {x}""".replace(
    "\n", " "
).split("|")
ASK_END = (
    """how many {x} ~do {A} have now|how many {x} are left|how many {x} ~do {he} have left|how many {x} ~do {A} have
in the end|how many {x} does that leave|how many {x} ~do {A} end up with|what is the number of {x} {A} ~have now|how many {x}
will {A} have|how many {x} are there now|how many {x} remain|how many {x} ~do {he} have|how many {x} does {A} still
have""".replace("\n", " ")
    .replace("does {A} still", "~do {A} still")
    .split("|")
)
ASK_GAINED = """how many {x} ~do {A} have now|how many {x} ~do {he} have in all|how many {x} ~do {A} have altogether|how many
{x} ~do {A} have in total|how many {x} is that in total|how many {x} ~do {he} have|how many {x} does that make|what is the
total number of {x}|how many {x} are there altogether""".replace("\n", " ").split("|")
ASK_START = """how many {x} ~do {A} have at first|how many {x} ~do {he} have to begin with|how many {x} ~do {A} have in the
beginning|how many {x} ~do {he} start with|how many {x} were there at the start|how many {x} ~do {A} have before
that""".replace("\n", " ").split("|")
TOGETHER = """how many {x} do they have together|how many {x} do they have in all|how many {x} do {A} and {B} have
altogether|what is the total number of {x}|how many {x} are there in total|how many {x} do the two of them have""".replace(
    "\n", " "
).split("|")
MORE = """how many more {x} ~do {A} have than {B}|how many fewer {x} ^do {B} have than {A}|what is the difference between
their numbers of {x}|by how many {x} ~be {A} ahead of {B}|how many {x} ^do {B} need to have as many as
{A}""".replace("\n", " ").split("|")  # fmt: skip
