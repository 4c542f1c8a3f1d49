// A Call that outlives post(): the views have become values. What the engines that keep calls
// share: telling whether two calls agree, and words for messages.
#pragma once

#include <lockstep/comm/backend.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

namespace lockstep {

class StreamPoint;

struct PostedCall {
  Collective collective = Collective::barrier;
  Op op = Op::sum;
  int root = -1;
  at::Tensor input;
  at::Tensor output;
  std::vector<std::int64_t> input_counts;
  std::vector<std::int64_t> output_counts;
  std::string tag;
  Duration timeout{};
  std::source_location where;
  // Where the posting thread's work on the tensors' device was; null for the host's memory.
  std::shared_ptr<const StreamPoint> after;
  std::uint64_t number =
      0;  // of the collectives of this group, or of the messages of this pair; from 1
  // Of the tensor whose size all ranks agree on; nothing for a barrier.
  std::optional<at::ScalarType> dtype;
  std::int64_t elements = 0;

  PostedCall() = default;
  PostedCall(const Call& call, std::uint64_t number);
  // What messages need, without keeping memory alive.
  [[nodiscard]] PostedCall without_tensors() const;

  [[nodiscard]] bool is_message() const {
    return collective == Collective::send || collective == Collective::recv;
  }
  [[nodiscard]] bool reduces() const;
  [[nodiscard]] bool has_root() const;
};

// The tensor whose size all ranks agree on; undefined for a barrier.
[[nodiscard]] const at::Tensor& operand(const Call& call);

// True when the two belong together: two ranks' calls of one collective, or the two ends of one
// message. For an uneven all_to_all the counts are compared apart, by counts_agree.
[[nodiscard]] bool same_call(const PostedCall& a, const PostedCall& b);
// Whether what `from` sends to `to` is what `to` expects from `from`, in an all_to_all.
[[nodiscard]] bool counts_agree(const PostedCall& from, int from_rank, const PostedCall& to,
                                int to_rank, int size);
// The elements of part `part` of an even or uneven operand.
[[nodiscard]] std::int64_t part_elements(const std::vector<std::int64_t>& counts, std::int64_t all,
                                         int size, int part);

// A number that two calls share when they belong together, and hardly ever otherwise.
[[nodiscard]] std::uint64_t fingerprint_of(const PostedCall& call);

// all_reduce #417 (bucket 2, 12 MB)
[[nodiscard]] std::string describe(const PostedCall& call);
// What a rank that misses should have called: the same, or the other end of a message.
[[nodiscard]] std::string describe_due(const PostedCall& call);
// all_reduce #417 (sum, 3145728 x Float, bucket 2) at trainer.cc:88
[[nodiscard]] std::string describe_fully(const PostedCall& call);
[[nodiscard]] std::string describe(const std::source_location& where);

}  // namespace lockstep
