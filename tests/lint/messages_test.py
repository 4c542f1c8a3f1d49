"""tools/messages.py finds the messages of calls and the texts that functions return, and joins their literals."""
from expectation import expectation

expect = expectation("../messages.py")


def expect_message(code, line):
    expect({"src/base/a.cc": code}, 0, f"src/base/a.cc:{line}\n")


expect_message('\ncheck(root >= 0, "broadcast: root must be "\n  "0..{}, found {}", size - 1, root);',
               "2: check: broadcast: root must be 0..{}, found {}")
expect_message('if (file.empty()) throw BadInput("reading " + path.string() + ": no such file");',
               "1: BadInput: reading {}: no such file")
expect_message('throw SystemError(formatted("opening {}", path), errno);', "1: SystemError: opening {}")
expect_message('log::warning("{} left: {}", counted(count, "rank"), why.empty() ? "no reason" : why);',
               "1: log::warning: {} rank[|s] left: [no reason|{}]")
expect_message('throw Error(c10::str("expected ", a, " rows, found ", b));', "1: Error: expected {} rows, found {}")
expect_message('// "not a message"\nreturn formatted("{} of {} ranks", i, n) + " are here";',
               "2: text: {} of {} ranks are here")
expect_message('return R"(that is a "quoted" reason)";', '1: text: that is a "quoted" reason')

expect_count = expectation("../messages.py", "--count")
SILENT = '#include "base/a message of words.h"\nauto name = "one name";\ncheck(true, reason);'
expect_count({"src/a.cc": SILENT}, 0, "0 in all")
expect_count({"tests/a.cc": 'check(false, "a message of a test");'}, 0, "0 in all")

HELP = {"include/lockstep/a.h": 'options.add({"out", "FOLDER", "where the files go"}, into(out));',
        "src/base/a.cc": 'check(ready, "call init() first");'}
expect(HELP, 0, "src/base/a.cc:1: check: call init() first\n")
expectation("../messages.py", "--help-texts")(HELP, 0, "include/lockstep/a.h:1: help: where the files go\n")
expect_count(HELP, 0, "    1 src/base\n    1 in all\n")
print("messages: finds all kinds")
