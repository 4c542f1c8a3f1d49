#include <lockstep/plan/schedule_file.h>

#include "base/check.h"
#include "base/text.h"
#include "base/visible.h"
#include "sys/plain_file.h"

#include <algorithm>
#include <cstdint>

namespace lockstep::plan {
namespace {

constexpr std::string_view digits = "0123456789";
constexpr std::size_t most_bytes = std::size_t{128} << 20;

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

// Takes the text up to and including the separator. Returns false if there is no more text.
bool take_until(char separator, std::string_view& rest, bool& has_more, std::string_view& part) {
  if (!has_more) return false;
  const std::size_t end = rest.find(separator);
  part = rest.substr(0, end);
  has_more = end != std::string_view::npos;
  rest = has_more ? rest.substr(end + 1) : std::string_view();
  return true;
}

class Reader {
 public:
  explicit Reader(std::string_view name) : name_(name) { schedule_.name = name; }

  Schedule read(std::string_view text) {
    check_input(text.size() <= most_bytes, "{}: expected at most {} bytes, found {}", name_,
                most_bytes, text.size());
    if (text.ends_with('\n')) text.remove_suffix(1);
    std::string_view line;
    for (bool has_more = true; take_until('\n', text, has_more, line);) {
      ++line_;
      check_input(schedule_.ranks.size() < most_stages,
                  "{}:{}: expected at most {} ranks, found more", name_, line_, most_stages);
      schedule_.ranks.push_back(rank_of(line));
    }
    check_found();
    return std::move(schedule_);
  }

 private:
  std::vector<Action> rank_of(std::string_view line) {
    std::vector<Action> actions;
    std::string_view cell;
    for (bool has_more = true; take_until(',', line, has_more, cell);) {
      cell = trimmed(cell);
      if (cell.empty()) continue;
      actions.push_back(action_of(cell));
      // A valid schedule has at most three actions per cell.
      check_input(++actions_ <= 3 * most_cells, "{}:{}: expected at most {} actions, found more",
                  name_, line_, 3 * most_cells);
      schedule_.stages = std::max(schedule_.stages, actions.back().stage + 1);
      schedule_.micro_batches = std::max(schedule_.micro_batches, actions.back().micro_batch + 1);
    }
    return actions;
  }

  Action action_of(std::string_view cell) const {
    const std::size_t letter = std::min(cell.find_first_not_of(digits), cell.size());
    const auto stage = parse_integer(cell.substr(0, letter));
    const bool is_known = letter < cell.size() &&
                          std::string_view("FBIW").find(cell[letter]) != std::string_view::npos;
    const std::string_view rest = is_known ? cell.substr(letter + 1) : std::string_view();
    const auto micro_batch = rest.find_first_not_of(digits) == std::string_view::npos
                                 ? parse_integer(rest)
                                 : std::nullopt;
    check_input(stage && micro_batch,
                "{}:{}: expected an action such as 3F12 (stage, F, B, I or W, micro-batch), found "
                "'{}'",
                name_, line_, visible(cell, 60));
    check_input(*stage < most_stages && *micro_batch < most_micro_batches,
                "{}:{}: expected stages below {} and micro-batches below {}, found {}", name_,
                line_, most_stages, most_micro_batches, visible(cell, 60));
    return {static_cast<Compute>(cell[letter]), static_cast<int>(*stage),
            static_cast<int>(*micro_batch)};
  }

  void check_found() const {
    const auto problem = find_problem(schedule_);
    if (problem) check_input(false, "{}:{}: {}", name_, problem->rank + 1, problem->what);
  }

  std::string name_;
  Schedule schedule_;
  std::size_t line_ = 0;
  std::size_t actions_ = 0;
};

}  // namespace

Schedule parse_schedule(std::string_view text, std::string_view name) {
  return Reader(name).read(text);
}

std::string schedule_text(const Schedule& schedule) {
  std::string text;
  for (const std::vector<Action>& actions : schedule.ranks) {
    bool is_first = true;
    for (const Action& action : actions) {
      if (!is_first) text += ',';
      is_first = false;
      text += text_of(action);
    }
    text += '\n';
  }
  return text;
}

Schedule read_schedule(const std::filesystem::path& path) {
  return parse_schedule(sys::read_plain_file(path, most_bytes), path.string());
}

}  // namespace lockstep::plan
