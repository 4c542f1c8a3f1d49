#include "elastic/round_loop.h"

#include "base/environment.h"
#include "base/format.h"
#include "base/log.h"
#include "comm/init/place.h"
#include "elastic/agent_process.h"
#include "elastic/warm_up.h"
#include "launch/commit_folder.h"
#include "launch/detection/reserve.h"
#include "launch/environment.h"

#include <lockstep/comm/together.h>

#include <filesystem>
#include <utility>

namespace lockstep {
namespace {

constexpr const char* done_mark = "done";

std::string run_id() { return environment::text(launch::variable::run_id).value_or("run"); }

// This rank's own folder on this host; the group may be on several.
std::filesystem::path folder_of_commits(const Rounds* rounds) {
  if (rounds == nullptr) return {};
  try {
    launch::make_commit_folder(run_id(), agent_process());
    return launch::commit_folder(run_id());
  } catch (const std::exception& error) {
    log::warning("elastic: {}; no state is kept in memory", error.what());
    return {};
  }
}

// The rest of the group learns from this rank that it does not go on: they may be waiting for it.
void leave(Group& group, const std::string& why) noexcept {
  try {
    group.abort(why);
  } catch (const std::exception&) {
    // It is dead already, which is as good.
  }
}

// A worker that is lost now must not make the others begin anew.
void finish(Round& round) {
  constexpr CallOptions at_the_end{.tag = "end of training"};
  round.group().barrier(at_the_end).wait();
  if (round.group().is_root() && !round.is_unfinished()) round.mark(done_mark, "1");
  round.group().barrier(at_the_end).wait();
  round.commits().remove();
}

// What every rank would meet again: options, files, a state of another model.
bool is_final(const std::exception& error) {
  return dynamic_cast<const BadInput*>(&error) != nullptr ||
         dynamic_cast<const InvalidArgument*>(&error) != nullptr ||
         dynamic_cast<const CommonFailure*>(&error) != nullptr;
}

void say_final(const Rounds& rounds, const std::string& why) noexcept {
  try {
    rounds.say_final(why);
  } catch (const std::exception&) {
    // The agent learns of the end all the same.
  }
}

void run_body(Round& round, const std::function<void(Round&)>& body) {
  try {
    body(round);
    finish(round);
  } catch (const RoundEnded&) {
    throw;
  } catch (const std::exception& error) {
    leave(round.group(), error.what());
    throw;
  }
}

Group join(const InitOptions& options, const Rounds& rounds, const RoundPlace* place) {
  const launch::RankInfo info =
      place != nullptr ? rank_info(*place, rounds.number()) : launch::detect_rank();
  return init_at(info, options,
                 [&](std::shared_ptr<Store> store) { return rounds.filtered(std::move(store)); });
}

// One round. What made it end, if it was not `body`.
std::optional<std::string> run_round(const LoopOptions& options, const Rounds& rounds,
                                     const RoundPlace* place,
                                     const std::function<void(Round&)>& body) {
  try {
    rounds.keep();
    RoundWatch watch([rounds] { return rounds.ended(); });
    Group group = join(options.init, rounds, place);
    watch.watch(group);
    Round round(group, &rounds, &watch);
    run_body(round, body);
    return std::nullopt;
  } catch (const RoundEnded& end) {
    return end.what();
  } catch (const PeerLost& loss) {
    return loss.what();
  } catch (const Timeout& timeout) {
    return timeout.what();
  } catch (const Aborted& end) {
    return end.what();
  } catch (const std::exception& error) {
    if (is_final(error)) say_final(rounds, error.what());
    throw;
  }
}

}  // namespace

Round::Round(Group group, const Rounds* rounds, const RoundWatch* watch)
    : group_(std::move(group)),
      rounds_(rounds),
      watch_(watch),
      commits_(group_, folder_of_commits(rounds), number()) {}

RoundOfRun Round::of_run() const { return {run_id(), number()}; }

void Round::commit(const CommitContent& content) {
  if (!has_agent()) return;
  if (commits_.commit(content, watch_->has_ended()))
    throw RoundEnded(formatted("round {} ends: {}", number(),
                               watch_->has_ended() ? watch_->end() : "another rank has said so"));
}

std::string Round::marked(const std::string& name) {
  std::string value;
  together(group_, [&] {
    if (group_.is_root() && has_agent()) value = rounds_->marked(name).value_or("");
  });
  return broadcast_text(group_, std::move(value));
}

void Round::mark(const std::string& name, const std::string& value) {
  if (has_agent()) rounds_->mark(name, value);
}

bool run_rounds(const LoopOptions& options, const std::function<void(Round&)>& body) {
  if (launch::is_in_reserve()) {
    warm_up();
    if (options.prepare) options.prepare();
    if (!launch::wait_for_place()) return false;
  }
  std::optional<Rounds> rounds = Rounds::of_environment(options.init.join_timeout);
  if (!rounds) {
    Round round(init(options.init), nullptr, nullptr);
    body(round);
    return true;
  }
  if (options.reserve) rounds->offer_reserve();
  std::optional<RoundPlace> place;  // of the first round: in the environment
  for (;;) {
    if (rounds->marked(done_mark)) return true;
    const std::optional<std::string> end =
        run_round(options, *rounds, place ? &*place : nullptr, body);
    if (!end) return true;
    log::info("round {} is over for this worker: {}", rounds->number(), *end);
    place = rounds->next(options.rejoin_timeout);
    if (!place) return false;
  }
}

}  // namespace lockstep
