"""GPT-2's encoder once more in Python, as the oracle of bpe_test.cc: the regular expression as it stands in
github.com/openai/gpt-2, src/encoder.py, and its loop over pairs, without queue or links.

reference_bpe.py VOCABULARY MERGES TEXT: prints the tokens of the file TEXT, one on each line.
"""
import json
import re
import sys
import unicodedata


def characters(category):
    """Returns the characters of a Unicode category as a regular expression class, because re has no \\p."""
    found, first = "", None
    for code_point in range(0x110001):
        inside = code_point < 0x110000 and unicodedata.category(chr(code_point)).startswith(category)
        if inside and first is None:
            first = code_point
        if not inside and first is not None:
            found += f"\\U{first:08x}-\\U{code_point - 1:08x}"
            first = None
    return found


SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
LETTERS, NUMBERS = characters("L"), characters("N")
PIECES = re.compile(f"'s|'t|'re|'ve|'m|'ll|'d| ?[{LETTERS}]+| ?[{NUMBERS}]+| ?[^{SPACE}{LETTERS}{NUMBERS}]+"
                    f"|[{SPACE}]+(?![^{SPACE}])|[{SPACE}]+")


def spelling():
    printing = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    return {**{byte: chr(byte) for byte in printing}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def merged(word, ranks):
    while len(word) > 1:
        best = min(zip(word, word[1:]), key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        result, i = [], 0
        while i < len(word):
            if i + 1 < len(word) and (word[i], word[i + 1]) == best:
                result.append(word[i] + word[i + 1])
                i += 2
            else:
                result.append(word[i])
                i += 1
        word = result
    return word


def main():
    vocabulary = json.load(open(sys.argv[1], encoding="utf-8"))
    lines = open(sys.argv[2], encoding="utf-8").read().split("\n")[1:]
    ranks = {tuple(line.split(" ")): rank for rank, line in enumerate(line for line in lines if line)}
    text = open(sys.argv[3], encoding="utf-8", newline="").read()
    spelled, known = spelling(), {}
    for piece in PIECES.findall(text):
        if piece not in known:
            known[piece] = merged([spelled[byte] for byte in piece.encode()], ranks)
        for token in known[piece]:
            print(vocabulary[token])


main()
