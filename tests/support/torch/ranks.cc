#include "support/torch/ranks.h"

#include <lockstep/comm/local.h>
#include <lockstep/store/file_store.h>

#include "comm/backends.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace lockstep::test {

std::string_view name_of(Engine engine) {
  switch (engine) {
    case Engine::local:
      return "local";
    case Engine::shm:
      return "shm";
    case Engine::gloo:
      return "gloo";
  }
  return "?";
}

std::vector<Engine> engines() {
  std::vector<Engine> result{Engine::local};
  auto names = backend_names();
  for (auto engine : {Engine::shm, Engine::gloo}) {
    if (std::ranges::find(names, name_of(engine)) != names.end()) result.push_back(engine);
  }
  return result;
}

MeetingPlace::MeetingPlace(Engine engine, int size, Duration timeout)
    : engine_(engine), size_(size), timeout_(timeout) {}

std::shared_ptr<Store> MeetingPlace::store() const {
  return std::make_shared<FileStore>(folder_.path());
}

Group MeetingPlace::join(int rank) const {
  if (size_ == 1) return {};
  BackendOptions options{
      .timeout = timeout_, .join_timeout = std::chrono::seconds(20), .arena_bytes = 64 << 20};
  return {make_backend(name_of(engine_), store(), rank, size_, options), "world", timeout_};
}

void run_group(Engine engine, int size, const GroupBody& body, Duration timeout) {
  SCOPED_TRACE(std::to_string(size) + " ranks on " + std::string(name_of(engine)));
  if (engine == Engine::local) {
    try {
      run_as_threads(size, body, timeout);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    return;
  }
  MeetingPlace place(engine, size, timeout);
  expect_ranks(size, [&](int rank) { body(place.join(rank)); });
}

}  // namespace lockstep::test
