#include "support/accelerator/communicator.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

namespace lockstep::test::accelerator {
namespace {

// The number of last launches of a device that are compared with those of other devices.
constexpr std::size_t compared_launches = 64;

struct Member {
  RankBytes part;
  Actor stream = -1;  // -1: not launched
  bool has_arrived = false;
};

// One call of all ranks. Guarded by the machine's mutex, except while the kernel runs.
struct Collective {
  std::string signature;
  std::string communicator;
  std::size_t number = 0;
  std::vector<Member> members;
  CollectiveKernel kernel;
  Clock clock{};
  bool has_run = false;
  std::shared_ptr<bool> is_broken;  // the communicator's

  [[nodiscard]] bool is_launched() const {
    return std::ranges::all_of(members, [](auto& member) { return member.stream >= 0; });
  }
  [[nodiscard]] bool has_arrived() const {
    return std::ranges::all_of(members, &Member::has_arrived);
  }
};

// The gate of one rank's task in a call.
class CollectiveGate final : public Gate {
 public:
  CollectiveGate(std::shared_ptr<Collective> call, int rank)
      : call_(std::move(call)), rank_(rank) {}
  void arrive() override { call_->members[rank_].has_arrived = true; }
  [[nodiscard]] bool is_open() const override {
    return *call_->is_broken || call_->has_run || call_->has_arrived();
  }
  void give_up() override { *call_->is_broken = true; }
  [[nodiscard]] std::string state() const override {
    std::string text = "call " + std::to_string(call_->number) + " of " + call_->communicator;
    for (std::size_t rank = 0; rank < call_->members.size(); ++rank) {
      const Member& member = call_->members[rank];
      if (member.stream < 0)
        text += ", not launched by rank " + std::to_string(rank);
      else if (!member.has_arrived)
        text += ", not at the head on rank " + std::to_string(rank);
    }
    return text;
  }

 private:
  std::shared_ptr<Collective> call_;
  int rank_;
};

// Called for each rank's task; the first call computes the results of all ranks.
void run(Collective& call) {
  std::vector<RankBytes> parts;
  {
    const auto lock = Machine::get().lock();
    if (call.has_run || *call.is_broken) return;
    call.has_run = true;
    for (const Member& member : call.members) parts.push_back(member.part);
  }
  const Memory& memory = Machine::get().memory();
  for (RankBytes& part : parts) {
    part.input = memory.kernel_address(part.input);
    part.output = memory.kernel_address(part.output);
  }
  call.kernel(parts);
}

// The last launches of each device, oldest first.
using Orders = std::array<std::vector<std::shared_ptr<Collective>>, device_count>;

Orders& orders() {
  static Orders& all = *std::make_unique<Orders>().release();
  return all;
}

// Returns the calls that were launched after `call` on some device, or after one of these calls,
// and so on.
std::vector<Collective*> later_calls(Collective* call) {
  std::vector<Collective*> later{call};
  std::set<Collective*> seen{call};
  for (std::size_t i = 0; i < later.size(); ++i)
    for (const auto& order : orders()) {
      auto next = std::ranges::find(order, later[i], &std::shared_ptr<Collective>::get);
      for (; next != order.end(); ++next)
        if (seen.insert(next->get()).second) later.push_back(next->get());
    }
  later.erase(later.begin());
  return later;
}

// Checks that all devices launch the collectives of all communicators in one order.
void check_order(Reports& reports, const std::shared_ptr<Collective>& call, int device) {
  auto& own = orders()[device];
  for (const Collective* later : later_calls(call.get())) {
    const auto earlier = std::ranges::find(own, later, &std::shared_ptr<Collective>::get);
    if (earlier == own.end()) continue;
    const std::string place = ": sim:" + std::to_string(device) + " launches '" + later->signature +
                              "' before '" + call->signature + "', other devices after it";
    reports.add(Fault::order, "communicators " + later->communicator + " and " +
                                  call->communicator + " are used in different orders" + place);
    break;
  }
  own.push_back(call);
  if (own.size() > compared_launches) own.erase(own.begin());
}

}  // namespace

struct Communicator::State {
  std::string name;
  std::vector<std::size_t> next;                             // the number of each rank's next call
  std::map<std::size_t, std::shared_ptr<Collective>> calls;  // not yet launched by all ranks
  std::shared_ptr<bool> is_broken = std::make_shared<bool>(false);

  std::shared_ptr<Collective> call_of(int rank, const std::string& signature,
                                      CollectiveKernel& kernel, Reports& reports) {
    const std::size_t number = next.at(rank)++;
    auto& call = calls[number];
    if (!call) {
      call = std::make_shared<Collective>(Collective{.signature = signature,
                                                     .communicator = name,
                                                     .number = number,
                                                     .members = std::vector<Member>(next.size()),
                                                     .kernel = std::move(kernel),
                                                     .is_broken = is_broken});
      return call;
    }
    if (call->signature == signature || *is_broken) return call;
    const auto first = std::ranges::find_if(
        call->members, [](const Member& member) { return member.stream >= 0; });
    reports.add(Fault::order, "call " + std::to_string(number) + " of " + name + " is '" +
                                  signature + "' on rank " + std::to_string(rank) + " and '" +
                                  call->signature + "' on rank " +
                                  std::to_string(first - call->members.begin()));
    *is_broken = true;
    return call;
  }
};

Communicator::Communicator(int size, std::string name) : state_(std::make_shared<State>()) {
  state_->name = std::move(name);
  state_->next.resize(size);
}

void Communicator::abort() {
  const auto lock = Machine::get().lock();
  *state_->is_broken = true;
  Machine::get().wake(lock);
}

bool Communicator::is_broken() const {
  const auto lock = Machine::get().lock();
  return *state_->is_broken;
}

void Communicator::launch(int rank, Actor stream, const std::string& signature,
                          const RankBytes& part, CollectiveKernel kernel) {
  auto& machine = Machine::get();
  const Memory& memory = machine.memory();
  std::vector<Access> accesses;
  if (part.input != nullptr && part.input_bytes > 0) {
    const auto begin = memory.offset_of(part.input);
    accesses.push_back({begin, begin + part.input_bytes, AccessKind::copy});
  }
  if (part.output != nullptr && part.output_bytes > 0) {
    const auto begin = memory.offset_of(part.output);
    accesses.push_back({begin, begin + part.output_bytes, AccessKind::write});
  }
  const auto lock = machine.lock();
  const auto call = state_->call_of(rank, signature, kernel, machine.reports(lock));
  check_order(machine.reports(lock), call, device_of(stream));
  machine.launch(lock,
                 {.stream = stream,
                  .name = signature + " [" + state_->name + " rank " + std::to_string(rank) + "]",
                  .accesses = std::move(accesses),
                  .run = [call] { run(*call); },
                  .gate = std::make_shared<CollectiveGate>(call, rank)});
  call->members[rank].part = part;
  call->members[rank].stream = stream;
  join(call->clock, machine.clock_of(lock, stream));
  if (!call->is_launched()) return;
  for (const Member& member : call->members)
    join(machine.clock_of(lock, member.stream), call->clock);
  state_->calls.erase(call->number);
}

}  // namespace lockstep::test::accelerator
