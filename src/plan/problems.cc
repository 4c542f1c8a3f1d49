#include "base/check.h"
#include "plan/walk.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace lockstep::plan {
namespace {

struct ActionIndex {
  int rank = 0;
  std::size_t index = 0;
};

// A B does the work of an I and of a W.
std::vector<Action> parts_of(const Action& action) {
  const auto [compute, stage, micro_batch] = action;
  if (compute != Compute::backward) return {action};
  return {{Compute::input, stage, micro_batch}, {Compute::weight, stage, micro_batch}};
}

class Problems {
 public:
  explicit Problems(const Schedule& schedule) : schedule_(schedule) {}

  std::optional<ScheduleProblem> first() {
    find_sizes();
    for (auto find : {&Problems::find_places, &Problems::find_missing, &Problems::find_gap,
                      &Problems::find_deadlock}) {
      if (!problem_) (this->*find)();
    }
    return problem_;
  }

 private:
  void say(ActionIndex place, std::string what) {
    if (!problem_) problem_ = {place.rank, place.index, std::move(what)};
  }
  void say(int rank, std::string what) { say(ActionIndex{rank, 0}, std::move(what)); }

  [[nodiscard]] const Action& at(ActionIndex place) const {
    return schedule_.ranks[static_cast<std::size_t>(place.rank)][place.index];
  }
  [[nodiscard]] std::optional<ActionIndex> find(const Action& part) const {
    const auto found = places_.find(key_of(part));
    return found == places_.end() ? std::nullopt : std::optional(found->second);
  }

  template <typename Visit>
  void each_action(Visit visit) {
    for (int rank = 0; rank < schedule_.rank_count(); ++rank)
      for (std::size_t i = 0; i < schedule_.ranks[static_cast<std::size_t>(rank)].size(); ++i)
        if (!problem_) visit(ActionIndex{rank, i});
  }

  void find_sizes() {
    if (schedule_.ranks.empty()) return say(0, "expected a rank, found none");
    for (int rank = 0; rank < schedule_.rank_count(); ++rank)
      if (schedule_.ranks[static_cast<std::size_t>(rank)].empty())
        return say(rank, "expected an action of this rank, such as 0F0, found none");
    each_action([&](ActionIndex place) {
      const Action& action = at(place);
      if (action.stage < 0 || action.stage >= schedule_.stages || action.micro_batch < 0 ||
          action.micro_batch >= schedule_.micro_batches)
        say(place, formatted("expected stages 0..{} and micro-batches 0..{}, found {}",
                             schedule_.stages - 1, schedule_.micro_batches - 1, text_of(action)));
    });
  }

  void find_places() {
    std::unordered_map<int, ActionIndex> owners;
    each_action([&](ActionIndex place) {
      const Action& action = at(place);
      const auto [owner, is_new] = owners.emplace(action.stage, place);
      if (!is_new && owner->second.rank != place.rank)
        return say(place, formatted("{}: expected stage {} on rank {}, where {} is, found it here",
                                    text_of(action), action.stage, owner->second.rank,
                                    text_of(at(owner->second))));
      for (const Action& part : parts_of(action)) {
        const auto [earlier, is_first] = places_.emplace(key_of(part), place);
        if (!is_first)
          return say(place,
                     formatted("{}: expected it once, found it after {}, which does the same",
                               text_of(action), text_of(at(earlier->second))));
      }
    });
  }

  void find_missing() {
    each_action([&](ActionIndex place) {
      const Action& action = at(place);
      for (const Action& needed : Needs(action, schedule_.stages))
        if (!find(needed)) return say(place, needs_text(action, needed));
      if (action.compute == Compute::weight || action.compute == Compute::backward) return;
      const bool is_forward = action.compute == Compute::forward;
      const Action next{is_forward ? Compute::input : Compute::weight, action.stage,
                        action.micro_batch};
      if (find(next)) return;
      say(place, formatted("{}: expected its {} {}, found none", text_of(action),
                           is_forward ? "backward" : "gradient of weights",
                           is_forward ? either_text(next) : text_of(next)));
    });
  }

  static std::string either_text(Action action) {
    action.compute = Compute::backward;
    std::string text = text_of(action);
    action.compute = Compute::input;
    return text + " or " + text_of(action);
  }

  static std::string needs_text(const Action& action, const Action& needed) {
    if (action.compute == Compute::weight)
      return formatted("{}: expected {}, which it needs, found none", text_of(action),
                       text_of(needed));
    return formatted("{}: expected {}, which it needs, found none", text_of(action),
                     needed.compute == Compute::input ? either_text(needed) : text_of(needed));
  }

  // Stages form a chain of dependencies, so only the last stages can be missing here. Micro-batches
  // are independent of each other.
  void find_gap() {
    const ActionIndex last = {0, 0};
    for (int stage = 0; stage < schedule_.stages; ++stage)
      if (!find({Compute::forward, stage, at(last).micro_batch}))
        return say(last, formatted("expected stages 0..{}, found no forward of stage {}",
                                   schedule_.stages - 1, stage));
    for (int micro_batch = 0; micro_batch < schedule_.micro_batches; ++micro_batch)
      if (const Action action{Compute::forward, schedule_.stages - 1, micro_batch}; !find(action))
        return say(last, formatted("expected micro-batches 0..{} in every stage, found no {}",
                                   schedule_.micro_batches - 1, text_of(action)));
  }

  void find_deadlock() {
    const Walk reached = walk(schedule_, {});
    int rank = 0;
    while (rank < schedule_.rank_count() && reached.reached_end(schedule_, rank)) ++rank;
    if (rank == schedule_.rank_count()) return;
    // Follow each waiting rank to the rank it waits for until one repeats: that is a cycle.
    std::vector<int> chain;
    std::string text;
    while (std::ranges::find(chain, rank) == chain.end()) {
      chain.push_back(rank);
      rank = waited_for(reached, rank).rank;
    }
    const int first = rank;
    do {
      const ActionIndex here{rank, reached.starts[static_cast<std::size_t>(rank)].size()};
      const ActionIndex there = waited_for(reached, rank);
      text += formatted("{}rank {} waits in {} for {}", text.empty() ? "" : "; ", rank,
                        text_of(at(here)), text_of(at(there)));
      text += there.rank == rank ? ", which it does later" : formatted(" of rank {}", there.rank);
      rank = there.rank;
    } while (rank != first);
    say({first, reached.starts[static_cast<std::size_t>(first)].size()},
        "expected an order that ends, found a deadlock: " + text);
  }

  // Returns the position of the action that a blocked rank waits for.
  [[nodiscard]] ActionIndex waited_for(const Walk& reached, int rank) const {
    const ActionIndex here{rank, reached.starts[static_cast<std::size_t>(rank)].size()};
    for (const Action& need : Needs(at(here), schedule_.stages)) {
      const ActionIndex there = *find(need);
      if (there.index >= reached.starts[static_cast<std::size_t>(there.rank)].size()) return there;
    }
    return here;
  }

  const Schedule& schedule_;
  std::unordered_map<std::uint64_t, ActionIndex> places_;
  std::optional<ScheduleProblem> problem_;
};

}  // namespace

std::optional<ScheduleProblem> find_problem(const Schedule& schedule) {
  return Problems(schedule).first();
}

void check_schedule(const Schedule& schedule) {
  const auto problem = find_problem(schedule);
  if (!problem) return;
  check(false, "schedule {}: rank {}: {}", schedule.name, problem->rank, problem->what);
}

}  // namespace lockstep::plan
