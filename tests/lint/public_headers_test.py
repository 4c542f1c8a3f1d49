"""The check of public headers finds unreachable headers, wrong includes, and headers that export nothing."""
from expectation import expectation

PUSH, POP = "#pragma GCC visibility push(default)\n", "#pragma GCC visibility pop\n"
GOOD = f"// A.\n#include <string>\n\n{PUSH}\nvoid a();\n\n{POP}"

expect = expectation("public_headers.py")
A = "include/lockstep/x/a.h"
FIRST = {"include/lockstep/lockstep.h": "#include <lockstep/x/a.h>\n", A: GOOD}
OTHER = "include/lockstep/x/b.h"
expect(FIRST, 0, "all reached")
expect(FIRST | {OTHER: GOOD}, 1, f"{OTHER}: not reached")
expect(FIRST | {OTHER: GOOD, "docs/x.md": "`<lockstep/x/b.h>` is for backends\n"}, 0, "all reached")
expect(FIRST | {A: GOOD.replace("<string>", "<lockstep/x/b.h>"), OTHER: GOOD}, 0, "all reached")
expect(FIRST | {A: GOOD.replace("<string>", '"x/c.h"')}, 1, 'includes the private "x/c.h"')
expect(FIRST | {A: GOOD.replace("<string>", "<fmt/core.h>")}, 1, "includes <fmt/core.h>")
expect(FIRST | {A: GOOD.replace(PUSH, "")}, 1, "a.h: expected '#pragma GCC visibility push")
expect(FIRST | {A: PUSH + GOOD.replace(PUSH, "")}, 1, "a.h: expected '#pragma GCC visibility push")
print("public_headers: finds all five")
