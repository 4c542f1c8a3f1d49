#include <lockstep/parallel/join.h>

#include "base/check.h"
#include "base/scope_exit.h"
#include "module/checks.h"

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

constexpr std::int64_t rounds_of_one = std::int64_t{1} << 20;

}  // namespace

class Join::State final : public JoinLink {
 public:
  State(std::vector<Joinable*> joinables, JoinOptions options)
      : joinables_(std::move(joinables)), options_(std::move(options)) {
    check(!joinables_.empty(), "Join: the list of joinables is empty");
    for (Joinable* one : joinables_) {
      check(one != nullptr, "Join: a joinable is null");
      const Group &first = joinables_.front()->join_group(), &own = one->join_group();
      check(own.size() == first.size() && own.rank() == first.rank(),
            "Join: {} has {} ranks and {} has {}", joinables_.front()->join_name(), first.size(),
            one->join_name(), own.size());
    }
    group_ = joinables_.front()->join_group().split(0);
  }

  [[nodiscard]] const JoinOptions& options() const override { return options_; }

  JoinRound announce(const Joinable& joinable, int round) override {
    auto found = std::ranges::find(joinables_, &joinable);
    std::int64_t code = 1 + (found - joinables_.begin()) * rounds_of_one + round;
    if (is_shadowing_) return follow(code);
    said_ = code;
    JoinRound ranks = gather();
    if (options_.throw_on_early_termination && ranks.active < group_.size()) end_early(ranks);
    return ranks;
  }

  [[nodiscard]] JoinRound latest() const override { return latest_; }

  void run_empty_step() override {
    is_shadowing_ = is_first_ = true;
    ScopeExit over([this] { is_shadowing_ = false; });
    options_.empty_step();
    check(!is_first_, "Join: empty_step must run forward and backward with the joinables");
  }

  void finish(const std::function<void()>& after_backward) {
    bool is_first = true;
    said_ = 0;
    for (JoinRound ranks = gather(); ranks.active > 0; ranks = gather()) {
      if (std::exchange(is_first, false))
        for (Joinable* one : joinables_) one->end_inputs();
      auto [joinable, round] = round_of(codes_[static_cast<std::size_t>(ranks.first_active)]);
      if (options_.throw_on_early_termination) {
        joinable->leave(round);
        end_early(ranks);
      }
      if (joinable->shadow(round, ranks) && after_backward) after_backward();
    }
    release();
  }

  // Not collective.
  void begin(const std::shared_ptr<JoinLink>& self) {
    try {
      for (Joinable* one : joinables_) one->set_join(self);
    } catch (...) {
      release();
      throw;
    }
  }
  void release() {
    for (Joinable* one : std::exchange(joinables_, {})) one->set_join(nullptr);
  }
  [[nodiscard]] bool is_over() const { return joinables_.empty(); }

 private:
  // Exchanges the announcements of all ranks.
  JoinRound gather() {
    codes_ = modules::numbers_of_all(group_, {said_}, {.tag = "Join"});
    JoinRound ranks{.active = 0, .first_active = -1};
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (codes_[static_cast<std::size_t>(rank)] == 0) continue;
      ++ranks.active;
      if (ranks.first_active < 0) ranks.first_active = rank;
      check_same(ranks.first_active, rank);
    }
    latest_ = ranks;
    return ranks;
  }

  // Follows a round inside empty_step.
  JoinRound follow(std::int64_t code) {
    said_ = 0;
    JoinRound ranks = std::exchange(is_first_, false) ? latest_ : gather();
    std::int64_t others =
        ranks.active > 0 ? codes_[static_cast<std::size_t>(ranks.first_active)] : 0;
    if (others != code)
      throw Mismatch(formatted("Join: empty_step has reached {}, the other ranks {}", name_of(code),
                               name_of(others)));
    return ranks;
  }

  void check_same(int first, int rank) const {
    std::int64_t one = codes_[static_cast<std::size_t>(first)];
    std::int64_t other = codes_[static_cast<std::size_t>(rank)];
    if (one == other) return;
    throw Mismatch(formatted("Join: rank {} has reached {}, rank {} {}", first, name_of(one), rank,
                             name_of(other)));
  }

  [[noreturn]] void end_early(const JoinRound& ranks) {
    release();
    throw EarlyTermination(
        formatted("Join: the inputs of {} of {} ranks have ended, and all ranks end with them "
                  "(throw_on_early_termination)",
                  group_.size() - ranks.active, group_.size()));
  }

  [[nodiscard]] std::pair<Joinable*, int> round_of(std::int64_t code) const {
    auto place = static_cast<std::size_t>((code - 1) / rounds_of_one);
    return {joinables_.at(place), static_cast<int>((code - 1) % rounds_of_one)};
  }

  [[nodiscard]] std::string name_of(std::int64_t code) const {
    if (code == 0) return "the end of all inputs";
    return formatted("round {} of {}", round_of(code).second, round_of(code).first->join_name());
  }

  std::vector<Joinable*> joinables_;  // empty once Join has ended
  JoinOptions options_;
  Group group_;
  JoinRound latest_;
  std::int64_t said_ = 0;
  bool is_shadowing_ = false;  // inside empty_step
  bool is_first_ = false;      // its first round, which finish() has received already, is next
  std::vector<std::int64_t> codes_;
};

Join::Join(std::vector<Joinable*> joinables, JoinOptions options)
    : state_(std::make_shared<State>(std::move(joinables), std::move(options))) {
  state_->begin(state_);
}

Join::Join(Join&&) noexcept = default;

Join::~Join() {
  if (state_) state_->release();
}

void Join::finish(const std::function<void()>& after_backward) {
  check(state_ != nullptr && !state_->is_over(),
        "Join::finish: this Join has ended, by finish() or early termination: make a new one");
  state_->finish(after_backward);
}

}  // namespace lockstep
