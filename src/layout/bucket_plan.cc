#include "layout/bucket_plan.h"

#include "base/check.h"

#include <algorithm>

namespace lockstep::layout {
namespace {

struct OpenBucket {
  std::string kind;
  std::vector<int> items = {};
  std::int64_t bytes = 0;
  std::size_t last = 0;  // place of its last item in the order
};

void check_permutation(std::span<const int> order, std::size_t count) {
  std::vector<bool> seen(count, false);
  check(order.size() == count, "bucket plan: the order must name all {} parameters, found {}",
        count, order.size());
  for (int item : order) {
    bool known = item >= 0 && item < static_cast<int>(count);
    check(known && !seen[static_cast<std::size_t>(item)],
          "bucket plan: parameter {} is unknown or ordered twice", item);
    seen[static_cast<std::size_t>(item)] = true;
  }
}

OpenBucket& bucket_for(const PlanItem& item, std::vector<OpenBucket>& open) {
  for (OpenBucket& bucket : open)
    if (bucket.kind == item.kind) return bucket;
  return open.emplace_back(OpenBucket{item.kind});
}

}  // namespace

std::vector<int> reverse_order(int count) { return complete_order({}, count); }

BucketPlan plan_buckets(std::span<const PlanItem> items, std::span<const int> order,
                        PlanOptions options) {
  check_permutation(order, items.size());
  check(options.first_bucket_bytes >= 1 && options.bucket_bytes >= 1 && options.alone_bytes >= 1,
        "bucket plan: limits must be positive, found {}, {} and {}", options.first_bucket_bytes,
        options.bucket_bytes, options.alone_bytes);
  std::vector<OpenBucket> open;
  std::vector<OpenBucket> closed;
  for (std::size_t place = 0; place < order.size(); ++place) {
    const PlanItem& item = items[static_cast<std::size_t>(order[place])];
    if (item.bytes >= options.alone_bytes) {
      closed.push_back({item.kind, {order[place]}, item.bytes, place});
      continue;
    }
    OpenBucket& bucket = bucket_for(item, open);
    bucket.items.push_back(order[place]);
    bucket.bytes += item.bytes;
    bucket.last = place;
    if (bucket.bytes < (closed.empty() ? options.first_bucket_bytes : options.bucket_bytes))
      continue;
    const auto full = open.begin() + (&bucket - open.data());
    closed.push_back(std::move(*full));
    open.erase(full);
  }
  std::move(open.begin(), open.end(), std::back_inserter(closed));
  std::sort(closed.begin(), closed.end(),
            [](const OpenBucket& a, const OpenBucket& b) { return a.last < b.last; });
  BucketPlan plan;
  for (OpenBucket& bucket : closed) plan.push_back(std::move(bucket.items));
  return plan;
}

std::vector<int> complete_order(std::span<const int> observed, int count) {
  std::vector<int> order(observed.begin(), observed.end());
  for (int item = count - 1; item >= 0; --item)
    if (std::find(observed.begin(), observed.end(), item) == observed.end()) order.push_back(item);
  return order;
}

}  // namespace lockstep::layout
