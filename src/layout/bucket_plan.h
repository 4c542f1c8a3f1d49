// Which parameters are reduced together. Pure: the same plan on every rank that passes the same
// items and order.
//
// A bucket fills up in the order in which gradients become ready; it is closed when it has reached
// its limit, so it may exceed it by part of its last parameter. The first bucket is small, so that
// communication begins early. Parameters of another kind fill a bucket of their own, and where
// kinds alternate each keeps its bucket open. A large parameter is a bucket of its own. Buckets
// come in the order in which their last parameters become ready.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace lockstep::layout {

// What the plan needs to know of a parameter.
struct PlanItem {
  std::int64_t bytes = 0;
  std::string kind = "";  // dtype and device: what all parameters of a bucket have in common
};

struct PlanOptions {
  std::int64_t first_bucket_bytes = std::int64_t{1} << 20;  // 1 MiB
  std::int64_t bucket_bytes = std::int64_t{25} << 20;       // 25 MiB
  // From so many bytes on a parameter is a bucket of its own. All at least 1.
  std::int64_t alone_bytes = std::numeric_limits<std::int64_t>::max();
};

// Item numbers, bucket by bucket, in the order given within each.
using BucketPlan = std::vector<std::vector<int>>;

// count - 1, ..., 1, 0: what backward is expected to do before it has been seen.
[[nodiscard]] std::vector<int> reverse_order(int count);

// Every item once. InvalidArgument unless `order` is a permutation of the items' numbers and the
// limits are positive.
[[nodiscard]] BucketPlan plan_buckets(std::span<const PlanItem> items, std::span<const int> order,
                                      PlanOptions options = {});

// `observed` with the numbers below `count` that are not in it appended, greatest first: an order
// of readiness in which some parameters had no part.
[[nodiscard]] std::vector<int> complete_order(std::span<const int> observed, int count);

}  // namespace lockstep::layout
