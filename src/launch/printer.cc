#include "launch/printer.h"

namespace lockstep::launch {

namespace {

constexpr std::string_view line_ends = "\n\r";

// The length of the first line with its end; "\r\n" is one end.
std::size_t first_line(std::string_view text) {
  const std::size_t end = text.find_first_of(line_ends);
  if (end == std::string_view::npos) return text.size();
  return end + (text.substr(end, 2) == "\r\n" ? 2 : 1);
}

}  // namespace

std::size_t unfinished(std::string_view text) {
  // A '\r' at the very end may be half of "\r\n": the line is finished when the next byte is known.
  const std::size_t limit = text.ends_with('\r') ? text.size() - 1 : text.size();
  const std::size_t end = text.substr(0, limit).find_last_of(line_ends);
  return end == std::string_view::npos ? 0 : end + 1;
}

void Printer::print(int stream, int rank, std::string_view text) {
  if (text.empty()) return;
  if (style_ == PrefixStyle::none) return sink_.write(text);
  const std::string prefix = rank < 0 ? "[reserve] " : "[rank " + std::to_string(rank) + "] ";
  std::string block;
  if (open_.stream != stream && open_.stream != OpenLine::nobody) block += '\n';
  bool at_start = open_.stream != stream;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, first_line(text));
    if (at_start) block += prefix;
    block += line;
    text.remove_prefix(line.size());
    at_start = line_ends.find(line.back()) != std::string_view::npos;
  }
  open_.stream = at_start ? OpenLine::nobody : stream;
  sink_.write(block);
}

void Printer::say(std::string_view line) {
  std::string block;
  if (open_.stream != OpenLine::nobody) block += '\n';
  open_.stream = OpenLine::nobody;
  sink_.write(block.append(line) + "\n");
}

}  // namespace lockstep::launch
