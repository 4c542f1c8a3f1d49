// Options that a process passes to the backend that it joins. Each backend reads those it needs.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/c10d.h>

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

struct BackendOptions {
  Duration timeout = std::chrono::minutes(10);  // of a wait without a call: a full ring, subset()
  Duration join_timeout = std::chrono::minutes(5);  // time limit for every rank to join
  std::int64_t arena_bytes = 0;  // shm: 0: LOCKSTEP_ARENA, else a share of the host's memory
  // shm: if true, this process's CPU tensors are made in the arena (tensor_allocator.h) while a
  // backend of this world exists, in addition to arena_bytes. If unset, LOCKSTEP_ARENA_TENSORS
  // decides; its default is true, except in builds with a sanitizer.
  std::optional<bool> arena_tensors;
  std::string address = "127.0.0.1";       // gloo: of this host, for its peers
  MakeC10dBackend c10d = {};               // makes the backend `name`
  bool c10d_streams = false;               // that backend works on streams of `device`
  bool float_sums = false;                 // InitOptions::float_sums
  std::vector<std::string> hosts = {};     // hierarchical: of each rank
  std::vector<int> world_ranks = {};       // shm: of these ranks, if they are not the whole world
  std::optional<c10::Device> device = {};  // of this rank, if it is not the CPU
};

}  // namespace lockstep
