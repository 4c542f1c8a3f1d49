"""The check of words finds a private noun, a person where a thing acts, mixed spelling, and ls:: out of nowhere."""
from expectation import expectation

expect = expectation("words.py")
expect({"src/launch/a.cc": "RunResult result;\n", "docs/a.md": "The rank that waits.\n"}, 0, "words: 2 files")
expect({"src/launch/a.cc": "\nRoster roster;\n"}, 1, "src/launch/a.cc:2: 'Roster': write nodes of the run")
expect({"src/optim/a.cc": "// rounded by dice\n"}, 1, "'dice': write stochastic rounding")
expect({"src/optim/a.cc": "// rounded by dice (words: allowed)\n"}, 0, "words: 1 files")
expect({"src/data/a.cc": "for (int index : indices) sum += index;\n"}, 0, "words: 1 files")
expect({"include/lockstep/a.h": "// Whoever waits is told.\n"}, 1, "include/lockstep/a.h:1: 'Whoever'")
expect({"docs/a.md": "a gradient is infinite or NaN\n"}, 1, "write inf or NaN")
expect({"docs/a.md": "it is initialized\n"}, 1, "docs/a.md:1: 'initialized'")
expect({"docs/a.md": "`torch::nn::init::normalize_()` and `at::native::normalize(x)`\n"}, 0, "words: 1 files")
expect({"src/base/a.cc": "// this behavior\n"}, 1, "the British spelling")
expect({"include/lockstep/a.h": "//   ls::Group world;\n"}, 1, "write lockstep::")
expect({"README.md": "`ls::init()`\n"}, 1, "README.md: uses ls:: and does not show")
expect({"README.md": "`ls::init()` after `namespace ls = lockstep;`\n"}, 0, "words: 1 files")
expect({"examples/a.cc": "int main() { ls::init(); }\n"}, 1, "examples/a.cc: uses ls::")
print("words: finds all eight")
