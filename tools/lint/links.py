#!/usr/bin/env python3
"""Checks the documents: every relative link resolves (including its #heading), every file in backticks exists, and
docs/README.md lists every page of docs/ and docs/reference/.
"""
import pathlib
import re
import subprocess
import sys

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMED_FILE = re.compile(r"`((?:include|src|tests|docs|examples|tools|cmake|bench)/[A-Za-z0-9_./-]+\.[a-z]+)(?::\d+)?`")
HEADING = re.compile(r"^#+\s+(.*?)\s*$", re.MULTILINE)


def anchor(heading):
    """Returns the anchor that a Markdown renderer makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def problems_of(document, root):
    text = document.read_text()
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for link in LINK.findall(prose):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, wanted = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        if not target.exists():
            yield f"{document.relative_to(root)}: link to {link}, which is not there"
        elif wanted and wanted not in {anchor(h) for h in HEADING.findall(target.read_text())}:
            yield f"{document.relative_to(root)}: link to {link}, but there is no such heading"
    for name in NAMED_FILE.findall(prose):
        if not (root / name).exists():
            yield f"{document.relative_to(root)}: names {name}, which is not there"


def pages_without_entry(root):
    """Finds pages that the index does not link."""
    index = root / "docs/README.md"
    listed = {(index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(index.read_text())}
    for page in sorted([*index.parent.glob("*.md"), *index.parent.glob("reference/*.md")]):
        if page != index and page.resolve() not in listed:
            yield f"docs/README.md: does not list {page.relative_to(index.parent)}"


def main(root):
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
                            cwd=root, capture_output=True, text=True)
    documents = [root / name for name in listed.stdout.split()] or sorted(root.glob("*.md")) + sorted(root.glob("docs/**/*.md"))
    problems = [problem for document in documents if document.exists() for problem in problems_of(document, root)]
    has_index = (root / "docs/README.md").exists()
    problems += pages_without_entry(root) if has_index else ["docs/README.md: the index is not there"]
    print("\n".join(problems) if problems else f"links: {len(documents)} documents, every link resolves")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__ + "/../../..").resolve()))
