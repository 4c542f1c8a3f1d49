#include "comm/diagnose/history.h"

#include <lockstep/base/fingerprint.h>
#include <lockstep/base/format.h>
#include <lockstep/base/text.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace lockstep::watch {
namespace {

// A line is words apart by blanks, and at its end the description, which may hold blanks.
class Words {
 public:
  explicit Words(std::string_view line) : rest_(line) {}
  std::string_view next() {
    auto word = rest_.substr(0, rest_.find(' '));
    rest_.remove_prefix(std::min(rest_.size(), word.size() + 1));
    return word;
  }
  std::uint64_t number(int base = 10) {
    auto word = next();
    std::uint64_t value = 0;
    auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value, base);
    good_ = good_ && error == std::errc() && end == word.data() + word.size();
    return value;
  }
  int signed_number() {
    auto value = parse_integer(next());
    good_ = good_ && value.has_value();
    return static_cast<int>(value.value_or(0));
  }
  [[nodiscard]] std::string_view rest() const { return rest_; }
  [[nodiscard]] bool good() const { return good_; }

 private:
  std::string_view rest_;
  bool good_ = true;
};

// A description must stay on its line: a tag may hold anything.
std::string one_line_of(const PostedCall& call) {
  auto text = describe_fully(call);
  std::ranges::replace(text, '\n', ' ');
  return text;
}

}  // namespace

Route route_of(Collective collective, int root, int rank) {
  if (collective == Collective::send) return {rank, root};
  if (collective == Collective::recv) return {root, rank};
  return {};
}

// process PROCESS | left | route FROM TO LAST | mark NUMBER CHAIN | call NUMBER PRINT CHAIN TEXT
std::string Ledger::statement(std::string_view process, bool has_left) const {
  auto text = formatted("process {}\n", process);
  if (has_left) text += "left\n";
  for (const auto& [route, line] : lines_) {
    text += formatted("route {} {} {}\n", route.from, route.to, line.calls.back().call.number);
    for (const auto& mark : line.marks)
      text += formatted("mark {} {:x}\n", mark.number, mark.chain);
    auto begin = line.calls.size() > said ? line.calls.size() - said : 0;
    for (auto index = begin; index < line.calls.size(); ++index) {
      const auto& one = line.calls[index];
      text += formatted("call {} {:x} {:x} {}\n", one.call.number, one.fingerprint, one.chain,
                        one_line_of(one.call));
    }
  }
  return text;
}

Statement Statement::read(std::string_view text) {
  Statement result;
  StatedRoute* route = nullptr;
  while (!text.empty()) {
    auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    Words words(line);
    auto kind = words.next();
    if (kind == "process") {
      result.process = words.rest();
    } else if (kind == "left") {
      result.has_left = true;
    } else if (kind == "route") {
      Route key{words.signed_number(), words.signed_number()};
      auto last = words.number();
      route = words.good() ? &result.routes[key] : nullptr;
      if (route) route->last = last;
    } else if (route && (kind == "mark" || kind == "call")) {
      StatedCall call{.number = words.number()};
      if (kind == "call") call.fingerprint = words.number(16);
      call.chain = words.number(16);
      call.text = words.rest();
      if (words.good()) (kind == "call" ? route->calls : route->marks).push_back(std::move(call));
    }
  }
  return result;
}

const Ledger::Kept* Ledger::Line::find(std::uint64_t number) const {
  if (calls.empty() || number < calls.front().call.number || number > calls.back().call.number)
    return nullptr;
  return &calls[number - calls.front().call.number];
}

std::optional<std::uint64_t> Ledger::Line::chain_at(std::uint64_t number) const {
  if (const auto* kept = find(number)) return kept->chain;
  auto mark = std::ranges::find(marks, number, &StatedCall::number);
  return mark == marks.end() ? std::nullopt : std::optional(mark->chain);
}

void Ledger::note(Route route, const PostedCall& call) {
  auto& line = lines_[route];
  auto print = fingerprint_of(call);
  auto before = line.calls.empty() ? 0 : line.calls.back().chain;
  line.calls.push_back({call.without_tensors(), print, combine_fingerprints(before, print)});
  if (line.calls.size() > kept) line.calls.pop_front();
  if (call.number % mark_distance == 0) {
    line.marks.push_back({.number = call.number, .chain = line.calls.back().chain, .text = {}});
    if (line.marks.size() > marks_kept) line.marks.pop_front();
  }
  ++version_;
}

std::vector<Route> Ledger::routes() const {
  std::vector<Route> result;
  for (const auto& [route, line] : lines_) result.push_back(route);
  return result;
}

std::optional<Difference> Ledger::compare(Route route, const Line& mine,
                                          const StatedRoute& theirs) {
  std::uint64_t agreed = 0;  // equal chains up to here
  for (const auto* calls : {&theirs.marks, &theirs.calls}) {
    for (const auto& call : *calls) {
      if (mine.chain_at(call.number) == call.chain) agreed = std::max(agreed, call.number);
    }
  }
  for (const auto& call : theirs.calls) {
    const auto* own = call.number > agreed ? mine.find(call.number) : nullptr;
    if (own && own->fingerprint != call.fingerprint)
      return Difference{route, one_line_of(own->call), call.text, call.number};
  }
  for (const auto* calls : {&theirs.marks, &theirs.calls}) {
    for (const auto& call : *calls) {
      auto own = call.number > agreed ? mine.chain_at(call.number) : std::nullopt;
      if (own && *own != call.chain) return Difference{route, {}, {}, call.number};
    }
  }
  return std::nullopt;
}

std::optional<Difference> Ledger::compare(const Statement& theirs) const {
  for (const auto& [route, line] : lines_) {
    auto other = theirs.routes.find(route);
    if (other == theirs.routes.end()) continue;
    if (auto difference = compare(route, line, other->second)) return difference;
  }
  return std::nullopt;
}

}  // namespace lockstep::watch
