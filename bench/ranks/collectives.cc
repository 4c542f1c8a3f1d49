// The counterpart of bench/peers/collectives.py and bench/peers/mpi_collectives.c. Requests and
// answers:
//
//   check OP BYTES MEMORY               creates the tensors and checks the call: {"checked": true}
//   run OP BYTES MEMORY UNCOUNTED N     {"ns": [...]}: time of each of N calls on these tensors
//   bound BYTES                         {"spans": [[begin, end], ...]}: seconds of passes of each
//                                       kind over this rank's share (collectives/host_bounds.h)
//   machine                             {"core_to_core_s": ...}, measured by rank 0
#include "base/check.h"
#include "serve.h"

#include "apps/bench/collectives/calls.h"
#include "apps/bench/collectives/host_bounds.h"
#include "sys/program.h"

#include <lockstep/base/deadline.h>
#include <lockstep/comm/init.h>

#include <ATen/Parallel.h>

#include <fstream>
#include <iostream>
#include <list>
#include <optional>
#include <sstream>

namespace lockstep::bench {
namespace {

using apps::MeasuredCalls;

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

struct Order {
  std::string what, op, memory;
  std::int64_t bytes = 0;
  int uncounted = 0, calls = 0;
};

Order order_of(const std::string& line) {
  std::istringstream words(line);
  Order order;
  std::string rest;
  words >> order.what;
  if (order.what == "check" || order.what == "run")
    words >> order.op >> order.bytes >> order.memory;
  if (order.what == "run") words >> order.uncounted >> order.calls;
  if (order.what == "bound") words >> order.bytes;
  bool known = order.what == "check" || order.what == "run" || order.what == "bound" ||
               order.what == "machine";
  check_input(known && !words.fail() && !(words >> rest) && order.bytes >= 0 &&
                  order.uncounted >= 0 && order.calls >= 0,
              "expected a line such as 'run all_reduce 1024 arena 2 20', found '{}'", line);
  return order;
}

class Server {
 public:
  explicit Server(Group world) : world_(std::move(world)) {}

  nlohmann::json answer(const Order& order) {
    if (order.what == "machine")
      return {{"core_to_core_s", world_.is_root() ? apps::core_to_core_seconds() : 0}};
    if (order.what == "bound") return {{"spans", passes_over(order.bytes)}};
    Collective op = apps::collective_named(order.op);
    apps::Memory memory = apps::memory_named(order.memory);
    if (order.what == "check") {
      make(op, order.bytes, memory);
      return {{"checked", true}};
    }
    return {{"ns", find(op, order.bytes, memory).run(order.uncounted, order.calls)}};
  }

 private:
  // Creates tensors. Kinds of memory of one row take turns; the tensors of the previous row are
  // freed.
  void make(Collective op, std::int64_t bytes, apps::Memory memory) {
    bound_.reset();
    std::erase_if(kept_, [&](const MeasuredCalls& calls) {
      return calls.op() != op || calls.bytes() != bytes || calls.memory() == memory;
    });
    kept_.emplace_back(world_, op, bytes, memory).check_result();
  }

  MeasuredCalls& find(Collective op, std::int64_t bytes, apps::Memory memory) {
    for (MeasuredCalls& calls : kept_)
      if (calls.op() == op && calls.bytes() == bytes && calls.memory() == memory) return calls;
    throw BadInput("these calls were not checked");
  }

  std::vector<std::pair<double, double>> passes_over(std::int64_t bytes) {
    if (!bound_ || bound_bytes_ != bytes) bound_.emplace(bytes);
    bound_bytes_ = bytes;
    std::vector<std::pair<double, double>> spans;
    for (apps::PassKind kind : apps::pass_kinds()) {
      bound_->pass(kind);  // warm-up, like the first calls of a turn
      for (int pass = 0; pass < apps::passes_of_a_kind; ++pass) {
        world_.barrier().wait();
        double begin = now();
        bound_->pass(kind);
        spans.emplace_back(begin, now());
      }
    }
    return spans;
  }

  Group world_;
  std::list<MeasuredCalls> kept_;
  std::optional<apps::MemoryBound> bound_;
  std::int64_t bound_bytes_ = 0;
};

}  // namespace

int serve_collectives(const Words& words) {
  std::string pipes;
  CommandOptions options("lockstep-bench-rank collectives", "", "");
  options.add({"pipes", "PATH", ""}, text_into(pipes));
  if (auto code = sys::answer(options.read(words), options)) return *code;
  Group world = init();
  at::set_num_threads(1);
  Server server(world);
  nlohmann::json ready{{"ready", true}, {"library", formatted("Lockstep {}", world.backend())}};
  auto answer = [&](const std::string& line) { return server.answer(order_of(line)); };
  if (pipes.empty()) {
    serve(std::cin, std::cout, ready, answer);
    return 0;
  }
  std::ofstream out(formatted("{}/out.{}", pipes, world.rank()));
  std::ifstream in(formatted("{}/in.{}", pipes, world.rank()));
  serve(in, out, ready, answer);
  return 0;
}

}  // namespace lockstep::bench
