"""The check of mutants finds a missing source, a text that does not occur once, and a duplicate name."""
from expectation import expectation

expect = expectation("mutants.py")
SOURCE = {"src/base/a.cc": "int a = 1;\nint b = 2;\n"}


def listed(*mutants):
    return SOURCE | {"tools/mutants.py": f"MUTANTS = {list(mutants)}\n"}


GOOD = ("a is two", "base/a.cc", "a = 1", "a = MUTANT ? 2 : 1", "base", "*")
expect(listed(GOOD), 0, "each of 1 mistakes has its place")
expect(listed((GOOD[0], "base/gone.cc", *GOOD[2:])), 1, "'a is two': src/base/gone.cc is not there")
expect(listed((*GOOD[:2], "c = 1", *GOOD[3:])), 1, "expected once in src/base/a.cc, found 0 times: 'c = 1'")
expect(listed((*GOOD[:2], "int ", *GOOD[3:])), 1, "found 2 times: 'int '")
expect(listed(GOOD, (*GOOD[:2], "b = 2", *GOOD[3:])), 1, "2 mistakes are called 'a is two'")
expect(listed((*GOOD[:3], "a = 2", *GOOD[4:])), 1, "expected MUTANT")
print("mutants: finds all five")
