#include "support/torch/ranks.h"

#include <lockstep/comm/local.h>

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace lockstep::test {

std::string_view name_of(Engine engine) {
  switch (engine) {
    case Engine::local: return "local";
    case Engine::shm: return "shm";
    case Engine::gloo: return "gloo";
  }
  return "?";
}

std::vector<Engine> engines() { return {Engine::local}; }

void run_group(Engine engine, int size, const GroupBody& body, Duration timeout) {
  if (engine != Engine::local) throw std::runtime_error(std::string(name_of(engine)) + " is not in this build");
  try {
    run_as_threads(size, body, timeout);
  } catch (const std::exception& error) {
    ADD_FAILURE() << size << " ranks on " << name_of(engine) << ": " << error.what();
  }
}

}  // namespace lockstep::test
