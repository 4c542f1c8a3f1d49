"""The check of links finds links and files that are not there, and pages that the index does not list."""
from expectation import expectation

expect = expectation("links.py")
INDEX = {"docs/README.md": "[a](a.md) [b](reference/b.md#one)\n"}
PAGES = {"docs/a.md": "# A\n", "docs/reference/b.md": "# One\n[a](../a.md#a)\n"}
expect(INDEX | PAGES, 0, "3 documents, every link resolves")
expect(INDEX | PAGES | {"docs/a.md": "[b](b.md)\n"}, 1, "docs/a.md: link to b.md, which is not there")
expect(INDEX | PAGES | {"docs/a.md": "[b](reference/b.md#two)\n"}, 1, "but there is no such heading")
expect(INDEX | PAGES | {"docs/a.md": "# A\n`src/a.cc`\n"}, 1, "docs/a.md: names src/a.cc, which is not there")
expect(INDEX | PAGES | {"docs/reference/c.md": ""}, 1, "docs/README.md: does not list reference/c.md")
expect(PAGES, 1, "docs/README.md: the index is not there")
print("links: finds all five")
