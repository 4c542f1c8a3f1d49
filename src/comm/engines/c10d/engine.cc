#include "comm/engines/c10d/engine.h"

#include "comm/backend/blocking_engine.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lockstep::c10d_engine {

std::string Engine::objection_to(const at::Tensor& tensor) { return not_on_host(tensor); }

void Engine::finish(c10d::Work& work) { work.wait(); }

}  // namespace lockstep::c10d_engine
