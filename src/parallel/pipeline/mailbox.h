// Mailbox: the messages of one step between this rank and the others.
//
// The schedule determines the messages: the result of an action is sent to the rank that needs it.
// Both ends list the messages of a pair of ranks in the order in which the sending rank makes them,
// so they match one by one, and receives are posted before they are needed.
//
// The receiving rank must know the sizes of the tensors that the previous stage sends. In the first
// step of a kind (sizes of the batch, with or without gradients) a description precedes the
// tensors; later steps of that kind use the recorded description.
#pragma once

#include "parallel/pipeline/specs.h"
#include "plan/needs.h"

#include <lockstep/comm/group.h>
#include <lockstep/plan/schedule.h>

#include <c10/core/Device.h>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace lockstep::pipeline {

// The tensors that every forward of one kind of step passes on, by plan::Result::key().
using SpecBook = std::unordered_map<std::uint64_t, Specs>;

struct MailboxOptions {
  bool tells_specs = false;  // of the first step of its kind
  c10::Device device = c10::kCPU;
  std::optional<Duration> timeout = std::nullopt;
};

class Mailbox {
 public:
  // `book` is filled if `tells_specs` is set, and read otherwise. Group, schedule and book must
  // outlive this object.
  Mailbox(Group& group, const plan::Schedule& schedule, SpecBook& book, MailboxOptions options);

  // Posts the result of an action to the rank that needs it; does nothing if this rank needs it.
  // Throws InvalidArgument if the tensors differ from their description in the book.
  void send(const plan::Result& result, const Tensors& tensors);
  // Blocks until the result of another rank has arrived.
  [[nodiscard]] Tensors receive(const plan::Result& result);
  // Blocks until all sent messages have arrived.
  void finish();

  [[nodiscard]] int rank_of(int stage) const { return ranks_[static_cast<std::size_t>(stage)]; }

 private:
  struct Expected {
    plan::Result result;
    bool is_posted = false;
    Tensors tensors;
    std::vector<Work> works;
  };
  struct Channel {
    int source = 0;
    std::vector<Expected> messages;
    std::size_t posted = 0;  // of them
  };

  // Posts the receives of a channel through number `last`, and the next ones whose sizes are known.
  void post(Channel& channel, std::size_t last);
  [[nodiscard]] bool knows(const plan::Result& result) const;
  [[nodiscard]] at::Tensor post(const Channel& channel, Expected& message, const TensorMeta& spec);
  // Frees messages that have arrived before the step ends. Throws the error of a message that
  // failed.
  void drop_arrived();
  [[nodiscard]] Specs specs_for(const Channel& channel, const plan::Result& result);
  [[nodiscard]] CallOptions call(const std::string& tag) const {
    return {.tag = tag, .timeout = options_.timeout};
  }

  Group& group_;
  SpecBook& book_;
  const MailboxOptions options_;
  const std::vector<int> ranks_;  // of stages
  const int stages_;
  std::vector<Channel> channels_;
  std::unordered_map<std::uint64_t, std::pair<std::size_t, std::size_t>> places_;
  std::vector<Work> sent_;
};

}  // namespace lockstep::pipeline
