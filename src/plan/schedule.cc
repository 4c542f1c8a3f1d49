#include <lockstep/plan/schedule.h>

#include "base/check.h"
#include "base/escaped.h"
#include "base/format.h"
#include "base/text.h"
#include "sys/plain_file.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <utility>

namespace lockstep::plan {

std::string text_of(const Action& action) {
  return formatted("{}{}{}", action.stage, static_cast<char>(action.compute), action.micro_batch);
}

std::vector<int> rank_of_stages(const Schedule& schedule) {
  std::vector<int> ranks(static_cast<std::size_t>(schedule.stages));
  for (int rank = 0; rank < schedule.rank_count(); ++rank)
    for (const Action& action : schedule.ranks[static_cast<std::size_t>(rank)])
      ranks[static_cast<std::size_t>(action.stage)] = rank;
  return ranks;
}

// An action only depends on actions of its own micro-batch, so any micro-batch can be left out.
Schedule first_micro_batches(const Schedule& schedule, int micro_batches) {
  Schedule first = schedule;
  first.micro_batches = micro_batches;
  for (std::vector<Action>& actions : first.ranks)
    std::erase_if(actions, [&](const Action& a) { return a.micro_batch >= micro_batches; });
  return first;
}

Schedule forward_only(const Schedule& schedule, int micro_batches) {
  Schedule forwards = first_micro_batches(schedule, micro_batches);
  for (std::vector<Action>& actions : forwards.ranks)
    std::erase_if(actions, [](const Action& a) { return a.compute != Compute::forward; });
  return forwards;
}

Schedule forward_only(const Schedule& schedule) {
  return forward_only(schedule, schedule.micro_batches);
}

namespace {

// Builds the action list of one rank. Each stage counts its own micro-batches.
class RankActions {
 public:
  void forward(int stage) { add(Compute::forward, stage); }
  void backward(int stage) {
    add(Compute::backward, stage);
    ++counts_[{Compute::input, stage}];
  }
  void input(int stage) {
    late_.push_back({Compute::weight, stage, count(Compute::input, stage)});
    add(Compute::input, stage);
    ++counts_[{Compute::backward, stage}];
  }
  // Appends the oldest pending W.
  void weight() {
    actions_.push_back(late_.front());
    late_.pop_front();
  }
  // Appends the oldest pending W of `stage`.
  void weight(int stage) {
    const auto oldest =
        std::ranges::find_if(late_, [&](const Action& action) { return action.stage == stage; });
    actions_.push_back(*oldest);
    late_.erase(oldest);
  }
  void last_weights() {
    while (!late_.empty()) weight();
  }
  void last_weights(int stage) {
    const auto is_of = [&](const Action& action) { return action.stage == stage; };
    while (std::ranges::any_of(late_, is_of)) weight(stage);
  }

  [[nodiscard]] int forwards(int stage) { return count(Compute::forward, stage); }
  [[nodiscard]] int backwards(int stage) { return count(Compute::input, stage); }
  // Returns the number of pending W.
  [[nodiscard]] int late() const { return static_cast<int>(late_.size()); }

  std::vector<Action> take() { return std::move(actions_); }

 private:
  void add(Compute compute, int stage) {
    actions_.push_back({compute, stage, counts_[{compute, stage}]++});
  }
  [[nodiscard]] int count(Compute compute, int stage) { return counts_[{compute, stage}]; }

  std::vector<Action> actions_;
  std::map<std::pair<Compute, int>, int> counts_;
  std::deque<Action> late_;
};

// p ranks, m micro-batches, v stages per rank; r is the rank.
struct Sizes {
  int p, m, v;
};

std::vector<Action> gpipe(Sizes sizes, int r) {
  RankActions rank;
  for (int i = 0; i < sizes.m; ++i) rank.forward(r);
  for (int i = 0; i < sizes.m; ++i) rank.backward(r);
  return rank.take();
}

std::vector<Action> one_f_one_b(Sizes sizes, int r) {
  RankActions rank;
  for (int i = 0; i < std::min(sizes.m, sizes.p - 1 - r); ++i) rank.forward(r);
  while (rank.backwards(r) < sizes.m) {
    if (rank.forwards(r) < sizes.m) rank.forward(r);
    rank.backward(r);
  }
  return rank.take();
}

// Micro-batches pass in groups of p through the first chunk, then through the second, ...
std::vector<Action> interleaved(Sizes sizes, int r) {
  const int p = sizes.p, v = sizes.v, all = sizes.m * v;
  const auto chunk_of = [=](int i) { return i % (p * v) / p; };
  RankActions rank;
  int forwards = 0, backwards = 0;
  const auto forward = [&] { rank.forward(chunk_of(forwards++) * p + r); };
  const int first = std::min(all, 2 * (p - 1 - r) + (v - 1) * p);
  while (forwards < first) forward();
  while (backwards < all) {
    if (forwards < all) forward();
    rank.backward((v - 1 - chunk_of(backwards++)) * p + r);
  }
  return rank.take();
}

// Rank r delays r weight gradients (W): together with the forwards of 1F1B this keeps p
// activations. The delayed W's run at the end, in the gaps in which the rank waits for its I's.
std::vector<Action> zb_h1(Sizes sizes, int r) {
  RankActions rank;
  for (int i = 0; i < std::min(sizes.m, sizes.p - 1 - r); ++i) rank.forward(r);
  while (rank.backwards(r) < sizes.m) {
    const bool has_forward = rank.forwards(r) < sizes.m;
    if (has_forward) rank.forward(r);
    rank.input(r);
    if (rank.late() > r || !has_forward) rank.weight();
  }
  rank.last_weights();
  return rank.take();
}

// a is the stage on the way down, z the one on the way up.
std::vector<Action> zbv(Sizes sizes, int r) {
  const int p = sizes.p, m = std::max(sizes.m, 2 * p - 1);
  const int a = r, z = 2 * p - 1 - r;
  RankActions rank;
  const auto both = [&](int stage) {
    rank.input(stage);
    rank.weight(stage);
  };
  for (int i = 0; i < 2 * (p - r) - 1; ++i) rank.forward(a);
  for (int i = 0; i < r; ++i) {
    rank.forward(z);
    rank.forward(a);
  }
  for (int i = 0; i < p - r; ++i) {
    rank.forward(z);
    both(z);
  }
  while (rank.forwards(z) < m) {
    if (rank.forwards(a) < m) rank.forward(a);
    both(a);
    rank.forward(z);
    both(z);
  }
  for (int i = 0; i < r; ++i) {
    rank.input(a);
    rank.input(z);
  }
  for (int i = 0; i < p - r; ++i) both(a);
  rank.last_weights(z);
  rank.last_weights(a);
  // With fewer than 2p - 1 micro-batches, the schedule is the full one without the missing
  // micro-batches.
  std::vector<Action> actions = rank.take();
  std::erase_if(actions, [&](const Action& action) { return action.micro_batch >= sizes.m; });
  return actions;
}

std::vector<Action> dual_pipe_v(Sizes sizes, int r) {
  const int p = sizes.p;
  const int a = r, z = 2 * p - 1 - r;
  const int after = p - 1 - r;  // ranks further down
  RankActions rank;
  for (int i = 0; i < 2 * after; ++i) rank.forward(a);
  for (int i = 0; i < r + 1; ++i) {
    rank.forward(a);
    rank.forward(z);
  }
  for (int i = 0; i < after; ++i) {
    rank.input(z);
    rank.weight();
    rank.forward(z);
  }
  // The main part: pairs a forward of each chunk with a backward of the other.
  for (int i = 0; i < sizes.m - 2 * p + r + 1; ++i) {
    rank.forward(a);
    rank.backward(z);
    rank.forward(z);
    rank.backward(a);
  }
  for (int i = 0; i < after; ++i) {
    rank.backward(z);
    rank.forward(z);
    rank.backward(a);
  }
  // The second half of the next r + 1 pairs of backwards delays its W until the end.
  for (int i = 0; i < 2 * (r + 1); ++i) {
    const int stage = i % 2 == 0 ? z : a;
    i > r ? rank.input(stage) : rank.backward(stage);
  }
  for (int i = 0; i < after; ++i) {
    rank.weight();
    rank.input(a);
  }
  rank.last_weights();
  return rank.take();
}

struct Maker {
  std::string_view name;
  int least_chunks, most_chunks;
  std::vector<Action> (*of_rank)(Sizes sizes, int r);
};

constexpr std::array makers = {
    Maker{"gpipe", 1, 1, gpipe},
    Maker{"1f1b", 1, 1, one_f_one_b},
    Maker{"interleaved", 2, most_stages, interleaved},
    Maker{"zb-h1", 1, 1, zb_h1},
    Maker{"zbv", 2, 2, zbv},
    Maker{"dualpipev", 2, 2, dual_pipe_v},
};

constexpr auto names = [] {
  std::array<std::string_view, makers.size()> all;
  for (std::size_t i = 0; i < makers.size(); ++i) all[i] = makers[i].name;
  return all;
}();

const Maker& maker_of(std::string_view name) {
  const auto found = std::ranges::find(makers, name, &Maker::name);
  if (found == makers.end()) throw InvalidArgument(unknown_name("schedule", name, names));
  return *found;
}

Sizes checked_sizes(const Maker& maker, const ScheduleShape& shape) {
  const std::string_view name = maker.name;
  const int least = maker.least_chunks, most = maker.most_chunks;
  const int chunks = shape.chunks == 0 ? least : shape.chunks;
  check(shape.stages >= 1 && shape.stages <= most_stages,
        "schedule {}: expected 1 to {} stages, found {}", name, most_stages, shape.stages);
  check(shape.micro_batches >= 1 && shape.micro_batches <= most_micro_batches,
        "schedule {}: expected 1 to {} micro-batches, found {}", name, most_micro_batches,
        shape.micro_batches);
  check(static_cast<std::size_t>(shape.stages) * static_cast<std::size_t>(shape.micro_batches) <=
            most_cells,
        "schedule {}: expected at most {} stages times micro-batches, found {} times {}", name,
        most_cells, shape.stages, shape.micro_batches);
  if (least == most) {
    check(chunks == least, "schedule {}: expected {} (stages of a rank), found {}", name,
          counted(least, "chunk"), chunks);
  } else {
    check(chunks >= least, "schedule {}: expected {} chunks (stages of a rank) or more, found {}",
          name, least, chunks);
  }
  check(shape.stages % chunks == 0,
        "schedule {}: expected stages in multiples of {} chunks (stages of a rank), found {}", name,
        chunks, shape.stages);
  return {shape.stages / chunks, shape.micro_batches, chunks};
}

}  // namespace

std::span<const std::string_view> schedule_names() { return names; }

int stages_per_rank(std::string_view name) { return maker_of(name).least_chunks; }

Schedule make_schedule(std::string_view name, ScheduleShape shape) {
  const Maker& maker = maker_of(name);
  const Sizes sizes = checked_sizes(maker, shape);
  if (maker.of_rank == interleaved)
    check(sizes.m % sizes.p == 0,
          "schedule {}: expected micro-batches in multiples of {} ranks, found {}", name, sizes.p,
          sizes.m);
  if (maker.of_rank == dual_pipe_v)
    check(sizes.m >= 2 * sizes.p,
          "schedule {}: expected at least 2 micro-batches per rank, {} for {} ranks, found {}",
          name, 2 * sizes.p, sizes.p, sizes.m);
  Schedule schedule{std::string(name), shape.stages, shape.micro_batches, {}};
  for (int r = 0; r < sizes.p; ++r) schedule.ranks.push_back(maker.of_rank(sizes, r));
  return schedule;
}

namespace {

constexpr std::string_view digits = "0123456789";
constexpr std::size_t most_bytes = std::size_t{128} << 20;

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

class Reader {
 public:
  explicit Reader(std::string_view name) : name_(name) { schedule_.name = name; }

  Schedule read(std::string_view text) {
    check_input(text.size() <= most_bytes, "{}: expected at most {} bytes, found {}", name_,
                most_bytes, text.size());
    if (text.ends_with('\n')) text.remove_suffix(1);
    for_each_part(text, '\n', [&](std::string_view line) {
      ++line_;
      check_input(schedule_.ranks.size() < most_stages,
                  "{}:{}: expected at most {} ranks, found more", name_, line_, most_stages);
      schedule_.ranks.push_back(rank_of(line));
    });
    check_found();
    return std::move(schedule_);
  }

 private:
  std::vector<Action> rank_of(std::string_view line) {
    std::vector<Action> actions;
    for_each_part(line, ',', [&](std::string_view part) {
      const std::string_view cell = trimmed(part);
      if (cell.empty()) return;
      actions.push_back(action_of(cell));
      // A valid schedule has at most three actions per cell.
      check_input(++actions_ <= 3 * most_cells, "{}:{}: expected at most {} actions, found more",
                  name_, line_, 3 * most_cells);
      schedule_.stages = std::max(schedule_.stages, actions.back().stage + 1);
      schedule_.micro_batches = std::max(schedule_.micro_batches, actions.back().micro_batch + 1);
    });
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
                name_, line_, escaped(cell, 60));
    check_input(*stage < most_stages && *micro_batch < most_micro_batches,
                "{}:{}: expected stages below {} and micro-batches below {}, found {}", name_,
                line_, most_stages, most_micro_batches, escaped(cell, 60));
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
