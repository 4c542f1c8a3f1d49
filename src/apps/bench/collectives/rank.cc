#include "apps/bench/collectives/rank.h"

#include "apps/bench/collectives/calls.h"

#include <lockstep/base/format.h>
#include <lockstep/comm/init.h>

#include <nlohmann/json.hpp>

#include <chrono>
#include <fstream>
#include <iostream>
#include <list>
#include <string>
#include <vector>

namespace lockstep::apps {
namespace {

class Server {
 public:
  explicit Server(Group world) : world_(std::move(world)) {}

  std::vector<std::int64_t> take(const Turn& turn) {
    MeasuredCalls& calls = calls_for(turn);
    calls.refill();
    for (int i = 0; i < turn.uncounted; ++i) (void)measure(calls, turn.op);
    std::vector<std::int64_t> times(turn.calls);
    for (std::int64_t& time : times) time = measure(calls, turn.op);
    return times;
  }

 private:
  // The kinds of memory of one operation take turns; the tensors of the one before go.
  MeasuredCalls& calls_for(const Turn& turn) {
    for (MeasuredCalls& calls : kept_)
      if (calls.is_for(turn.op, turn.bytes) && calls.memory() == turn.memory) return calls;
    std::erase_if(kept_,
                  [&](const MeasuredCalls& calls) { return !calls.is_for(turn.op, turn.bytes); });
    kept_.emplace_back(world_, turn.op, turn.bytes, turn.memory).check_result();
    return kept_.back();
  }

  std::int64_t measure(MeasuredCalls& calls, Collective op) {
    if (is_rooted(op)) world_.barrier().wait();
    auto start = Clock::now();
    calls.call();
    return (Clock::now() - start).count();
  }

  Group world_;
  std::list<MeasuredCalls> kept_;
};

void serve(Group world, std::istream& in, std::ostream& out) {
  auto say = [&](const nlohmann::json& words) { out << words.dump() << std::endl; };
  say({{"ready", true}, {"library", formatted("Lockstep {}", world.backend())}});
  Server server(world);
  for (std::string line; std::getline(in, line);) say({{"ns", server.take(turn_of(line))}});
}

}  // namespace

int serve_collectives(const std::string& pipes) {
  Group world = init();
  if (pipes.empty()) {
    serve(world, std::cin, std::cout);
    return 0;
  }
  std::ofstream out(formatted("{}/out.{}", pipes, world.rank()));
  std::ifstream in(formatted("{}/in.{}", pipes, world.rank()));
  serve(world, in, out);
  return 0;
}

}  // namespace lockstep::apps
