#include "global/generator_check.h"

#include "base/fingerprint.h"
#include "base/format.h"

#include <lockstep/base/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <string>

namespace lockstep::global {
namespace {

std::int64_t fingerprint_of(at::Generator& generator) {
  const at::Tensor state = generator.get_state();
  const auto* bytes = static_cast<const char*>(state.const_data_ptr());
  return static_cast<std::int64_t>(fingerprint(std::string_view(bytes, state.nbytes())));
}

}  // namespace

void GeneratorCheck::look(at::Generator generator, std::string_view operation, Group& group) {
  if (group.size() == 1) return;
  std::int64_t state = 0;
  {
    std::lock_guard lock(mutex_);
    std::lock_guard drawing(generator.mutex());
    const std::uint64_t seed = generator.current_seed();
    if (seed != seed_) count_ = 0;
    seed_ = seed;
    const std::uint64_t number = count_++;
    if ((number & (number - 1)) != 0) return;
    state = fingerprint_of(generator);
  }
  at::NoGradGuard no_grad;
  at::Tensor own = at::empty({1}, at::kLong), all = at::empty({group.size()}, at::kLong);
  *own.mutable_data_ptr<std::int64_t>() = state;
  const bool on_host = group.backend() != "nccl";
  at::Tensor gathered = on_host ? all : all.to(at::kCUDA);
  group.all_gather(gathered, on_host ? own : own.to(at::kCUDA), {.tag = "states of generators"})
      .wait();
  all = gathered.cpu();
  const auto* states = all.const_data_ptr<std::int64_t>();
  for (int rank = 1; rank < group.size(); ++rank)
    if (states[rank] != states[0])
      throw Mismatch(
          formatted("{}: expected generators in the same state on all ranks that compute one model "
                    "together, found another on rank {} than on rank 0; seed them alike, by "
                    "torch::manual_seed()",
                    operation, rank));
}

}  // namespace lockstep::global
