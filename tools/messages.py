#!/usr/bin/env python3
"""Prints every message of include/ and src/, one per line, to be read as a whole.

    messages.py [--help-texts] [--count] [ROOT]

A line is `file:line: kind: text`. The kind is the exception's type, the function that takes the message (check,
check_input, log::warning, say, print_to), or `text` for another literal of at least three words, such as a reason
that a function returns. {} stands for a value, and [a|b] for a choice between literals. A message without a literal
is not printed: its text is printed where it is made.

--help-texts prints the texts of options and usages instead, which are left out otherwise. --count prints the number
of messages of each folder.
"""
import argparse
import collections
import pathlib
import re
import sys

TREES = ("include", "src")
TOKEN = re.compile(r"""
    (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<raw>R"(?P<mark>[^(\s]*)\((?P<inside>.*?)\)(?P=mark)")
  | (?P<literal>"(?:[^"\\\n]|\\.)*")
  | (?P<directive>^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*)
  | (?P<name>[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*)
  | (?P<other>'(?:[^'\\\n]|\\.)+'|\d[\w.']*|::|->|[^\s])
""", re.VERBOSE | re.DOTALL | re.MULTILINE)
FIELD = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
OPENING, CLOSING = ("(", "{", "["), (")", "}", "]")
BORDERS = (*OPENING, *CLOSING, ",", ";", "=")   # no expression is followed to the left of these

# Functions that take a message, with the number of arguments before it.
LOG = {f"log::{level}": 0 for level in ("debug", "info", "warning", "error")}
CALLS = {"check": 1, "check_input": 1, "print_to": 1, "say": 0, **LOG}
FORMATS = {"check", "check_input", "print_to", "formatted", *LOG}
JOINING = ("c10::str",)   # functions that join their arguments
# Calls that declare options, and variables with a usage: their texts are help texts, not messages.
HELP = re.compile(r"(.*\W)?(add|add_\w+|CommandOptions|command|about|usage|help)")


class Token:
    def __init__(self, match):
        self.kind, self.at = match.lastgroup, match.start()
        if match["raw"] is not None:
            self.kind, self.text = "literal", match["inside"].replace("\n", "\\n")
        else:
            self.text = match[0].removeprefix("lockstep::")
            if self.kind == "literal":
                self.text = self.text[1:-1].replace('\\"', '"')

    def is_mark(self, *marks):
        return self.kind == "other" and self.text in marks


def tokens_of(text):
    found = (Token(match) for match in TOKEN.finditer(text))
    return [token for token in found if token.kind not in ("comment", "directive")]


def end_of_brackets(tokens, start):
    """Returns the index after the bracket that closes the one at `start`."""
    depth = 0
    for index in range(start, len(tokens)):
        depth += tokens[index].is_mark(*OPENING) - tokens[index].is_mark(*CLOSING)
        if depth == 0:
            return index + 1
    return len(tokens)


def split(tokens, *marks):
    """Splits tokens at marks that are outside of all brackets."""
    parts, depth = [[]], 0
    for token in tokens:
        depth += token.is_mark(*OPENING) - token.is_mark(*CLOSING)
        if depth == 0 and token.is_mark(*marks):
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def filled(pattern, values):
    """Puts the values that contain text into the fields of a pattern of formatted()."""
    values = iter(values)

    def field(match):
        if match[1] is None:
            return match[0][0]
        value = next(values, "{}")
        return match[0] if match[1] or value == "{}" else value

    return FIELD.sub(field, pattern)


def text_of(tokens):
    """Returns an expression as text: its literals, and {} for each value."""
    if len(parts := split(tokens, "+")) > 1:
        return "".join(text_of(part) for part in parts)
    condition, *rest = split(tokens, "?")
    if rest:
        choices = [text_of(part) for part in split([token for part in rest for token in part], ":")]
        return "{}" if set(choices) == {"{}"} else f"[{'|'.join(choices)}]"
    if tokens and all(token.kind == "literal" for token in tokens):
        return "".join(token.text for token in tokens)
    return text_of_call(tokens) or "{}"


def text_of_call(tokens):
    """Returns the text of a call, or of an expression in brackets; None if it is only a value."""
    opening = next((index for index, token in enumerate(tokens) if token.is_mark("(", "{")), None)
    if opening is None or end_of_brackets(tokens, opening) != len(tokens):
        return None
    name = tokens[opening - 1].text if opening else ""
    parts = split(tokens[opening + 1:-1], ",")
    if name == "formatted":
        return filled(text_of(parts[0]), [text_of(part) for part in parts[1:]])
    if name in JOINING:
        return "".join(text_of(part) for part in parts)
    if name == "counted":
        return f"{{}} {text_of(parts[1])}[|{text_of(parts[2]) if len(parts) > 2 else 's'}]"
    if name in ("", "std::string", "std::string_view", "std::move"):
        return text_of(parts[0])
    return None


def has_words(text, least=1):
    return len(re.findall(r"(?<![^\s('\"])[A-Za-z][a-z_]+(?![^\s,.:;)'\"\[])", text.replace("\\n", " "))) >= least


def message_of_call(name, parts):
    place = CALLS.get(name, 0)
    texts = [text_of(part) for part in parts[place:]]
    if name in FORMATS:
        return filled(texts[0], texts[1:]) if texts else ""
    return " / ".join(text for text in texts if has_words(text))


def expression_at(tokens, index):
    """Returns the start and the end of the expression that contains the token at `index`, up to its brackets."""
    start = end = index
    while start > 0 and tokens[start - 1].text != "return" and not tokens[start - 1].is_mark(*BORDERS):
        start -= 1
    while end < len(tokens) and not tokens[end].is_mark(*CLOSING, ",", ";"):
        end = end_of_brackets(tokens, end) if tokens[end].is_mark(*OPENING) else end + 1
    return start, end


def messages_of(text):
    """Yields (place in `text`, kind, message)."""
    tokens, index, callers = tokens_of(text), 0, []
    while index < len(tokens):
        token, before = tokens[index], tokens[index - 1].text if index else ""
        opens = index + 1 < len(tokens) and tokens[index + 1].is_mark("(", "{")
        kind, message, end = "", "", index + 1
        if token.kind == "name" and opens and (before == "throw" or token.text in CALLS):
            end = end_of_brackets(tokens, index + 1)
            kind, message = token.text, message_of_call(token.text, split(tokens[index + 2:end - 1], ","))
            if not has_words(message):
                kind, end = "", index + 1
        elif token.kind == "literal" or token.text in ("formatted", *JOINING) and opens:
            start, end = expression_at(tokens, index)
            message = text_of(tokens[start:end])
            given = [*callers, tokens[start - 2].text if start > 1 and tokens[start - 1].is_mark("=") else ""]
            if has_words(message, 3):
                kind = "help" if any(HELP.fullmatch(name) for name in given) else "text"
            else:
                end = index + 1
        if kind:
            yield token.at, kind, message
        elif token.is_mark(*OPENING):
            callers.append(before)
        elif token.is_mark(*CLOSING) and callers:
            callers.pop()
        index = end


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--help-texts", action="store_true")
    arguments.add_argument("--count", action="store_true")
    arguments.add_argument("root", nargs="?", default=pathlib.Path(__file__).resolve().parents[1], type=pathlib.Path)
    chosen = arguments.parse_args()
    counts = collections.Counter()
    for path in sorted(path for tree in TREES for path in (chosen.root / tree).rglob("*.[hc]*")):
        name, text = path.relative_to(chosen.root), path.read_text()
        for place, kind, message in messages_of(text):
            if (kind == "help") != chosen.help_texts:
                continue
            counts[name.parent.as_posix()] += 1
            if not chosen.count:
                print(f"{name.as_posix()}:{text.count(chr(10), 0, place) + 1}: {kind}: {message}")
    if chosen.count:
        for folder, count in sorted(counts.items()):
            print(f"{count:5} {folder}")
        print(f"{counts.total():5} in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
