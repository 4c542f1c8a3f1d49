#include "launch/last_lines.h"

#include "base/visible.h"

#include <algorithm>

namespace lockstep::launch {

namespace {

constexpr std::size_t longest_line = 500;

std::string presentable(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  const std::size_t overwritten = line.rfind('\r');
  if (overwritten != std::string_view::npos) line.remove_prefix(overwritten + 1);
  return visible_line(line, longest_line);
}

}  // namespace

void LastLines::add(int stream, std::string_view bytes) {
  if (bytes.empty()) return;
  if (stream != stream_ && !tail_.empty() && tail_.back() != '\n') tail_ += '\n';
  stream_ = stream;
  tail_.append(bytes.size() > kept ? bytes.substr(bytes.size() - kept) : bytes);
  if (tail_.size() > 2 * kept) tail_.erase(0, tail_.size() - kept);
}

std::vector<std::string> LastLines::lines(std::size_t most) const {
  std::vector<std::string> found;
  std::string_view rest = tail_;
  if (rest.ends_with('\n')) rest.remove_suffix(1);
  while (!rest.empty() && found.size() < most) {
    const std::size_t before = rest.rfind('\n');
    const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
    found.push_back(presentable(rest.substr(begin)));
    rest = rest.substr(0, begin == 0 ? 0 : before);
  }
  std::reverse(found.begin(), found.end());
  return found;
}

}  // namespace lockstep::launch
