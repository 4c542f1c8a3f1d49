#!/usr/bin/env python3
"""Prints src/data/unicode_categories.cc: the code points of Unicode's categories L and N, as Python's tables have them.

    python3 tools/unicode_categories.py > src/data/unicode_categories.cc
"""
import unicodedata

HEAD = '''// Made by tools/unicode_categories.py of Unicode %s.
#include "data/unicode_categories.h"

#include <algorithm>
#include <iterator>
#include <ranges>
#include <span>

namespace lockstep::data {
namespace {

struct CodePoints {
  char32_t first, last;
};

// clang-format off
'''
TAIL = '''// clang-format on

bool is_in(std::span<const CodePoints> ranges, char32_t code_point) {
  auto behind = std::ranges::upper_bound(ranges, code_point, {}, &CodePoints::first);
  return behind != ranges.begin() && code_point <= std::prev(behind)->last;
}

}  // namespace

bool is_letter(char32_t code_point) { return is_in(letters, code_point); }

bool is_number(char32_t code_point) { return is_in(numbers, code_point); }

bool is_white_space(char32_t code_point) {
  return (code_point >= 0x9 && code_point <= 0xd) || code_point == 0x20 || code_point == 0x85 ||
         code_point == 0xa0 || code_point == 0x1680 ||
         (code_point >= 0x2000 && code_point <= 0x200a) || code_point == 0x2028 ||
         code_point == 0x2029 || code_point == 0x202f || code_point == 0x205f ||
         code_point == 0x3000;
}

}  // namespace lockstep::data'''


def ranges(category):
    found, first = [], None
    for code_point in range(0x110001):
        inside = code_point < 0x110000 and unicodedata.category(chr(code_point)).startswith(category)
        if inside and first is None:
            first = code_point
        if not inside and first is not None:
            found.append((first, code_point - 1))
            first = None
    return found


def table(name, category):
    lines = [f"constexpr CodePoints {name}[] = {{"]
    line = "   "
    for first, last in ranges(category):
        item = f" {{{first:#x}, {last:#x}}},"
        if len(line) + len(item) > 100:
            lines.append(line)
            line = "   "
        line += item
    return "\n".join([*lines, line, "};"])


print(HEAD % unicodedata.unidata_version + table("letters", "L") + "\n" + table("numbers", "N") + "\n" + TAIL)
