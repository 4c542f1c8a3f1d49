#include "checkpoint/random_states.h"

#include "base/check.h"
#include "base/visible.h"

#include <lockstep/comm/together.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

#include <string>

namespace lockstep::checkpoint {
namespace {

// Tries it on a generator that nobody uses.
void check_state(const std::filesystem::path& file, const std::string& name,
                 const at::Tensor& state) {
  check_input(state.scalar_type() == at::kByte && state.dim() == 1,
              "{}: {}: expected a generator's state as bytes, U8 [n], found {} [{}]", file.string(),
              name, c10::toString(state.scalar_type()), listed(state.sizes(), ", "));
  check_input(state.numel() == own_random_state().numel(),
              "{}: {}: expected a generator's state of {} bytes, found {}", file.string(), name,
              own_random_state().numel(), state.numel());
  try {
    at::Generator generator = at::detail::createCPUGenerator();
    generator.set_state(state);
  } catch (const c10::Error& error) {
    throw BadInput(formatted("{}: {}: no state of a random generator: {}", file.string(), name,
                             visible(error.what_without_backtrace())));
  }
}

}  // namespace

at::Tensor own_random_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

std::vector<at::Tensor> gather_random_states(Group& group, const at::Tensor& own) {
  at::Tensor all =
      group.is_root() ? at::empty({group.size(), own.numel()}, at::kByte) : at::Tensor();
  group.gather(all, own, 0, {.tag = "checkpoint"}).wait();
  return group.is_root() ? all.unbind(0) : std::vector<at::Tensor>();
}

NamedTensors named_random_states(const std::vector<at::Tensor>& states) {
  NamedTensors named;
  for (std::size_t rank = 0; rank < states.size(); ++rank)
    named[formatted("rank{}", rank)] = states[rank];
  return named;
}

std::vector<at::Tensor> read_random_states(const std::filesystem::path& file, int ranks) {
  NamedTensors named = read_safetensors(file).tensors;
  check_input(named.size() == static_cast<std::size_t>(ranks),
              "{}: expected {} tensors, one for each rank that training.json counts, found {}",
              file.string(), ranks, named.size());
  std::vector<at::Tensor> states;
  for (int rank = 0; rank < ranks; ++rank) {
    std::string name = formatted("rank{}", rank);
    auto found = named.find(name);
    check_input(found != named.end(), "{}: has no {}", file.string(), name);
    check_state(file, name, found->second);
    states.push_back(found->second);
  }
  return states;
}

void scatter_random_states(Group& group, const std::vector<at::Tensor>& states) {
  at::Tensor mine = at::empty_like(own_random_state()), all;
  together(group, [&] {
    if (group.is_root()) all = at::stack(states).flatten();
  });
  group.scatter(mine, all, 0, {.tag = "checkpoint"}).wait();
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_state(mine);
}

}  // namespace lockstep::checkpoint
