#include "comm/engines/hierarchical/runner.h"

#include <lockstep/comm/group.h>
#include <lockstep/store/prefix_store.h>

#include "base/format.h"
#include "comm/backend/blocking_backend.h"
#include "comm/call/all_ranks.h"
#include "comm/engines/hierarchical/operations.h"
#include "sys/own_process.h"

#include <chrono>
#include <optional>
#include <utility>

namespace lockstep::hierarchical {
namespace {

// The whole group has timeouts and names late ranks; a subgroup ends only when the whole group
// does.
constexpr Duration practically_never = std::chrono::hours(24 * 365);

// Subgroups have descriptive names, because errors show them.
std::string inside_name(const std::string& group, int host) {
  return formatted("{}/host {}", group, host);
}
std::string across_name(const std::string& group, int place) {
  return formatted("{}/rank {} of each host", group, place);
}

class HierarchicalRunner final : public BlockingEngine {
 public:
  HierarchicalRunner(std::shared_ptr<Backend> inside, std::shared_ptr<Backend> across,
                     std::vector<std::string> hosts, const std::string& group, int rank);

  [[nodiscard]] std::string_view name() const override { return "hierarchical"; }
  void run(const PostedCall& call) override { perform(parts_, call); }
  void close(std::string_view reason) noexcept override;
  [[nodiscard]] at::Tensor empty_shared(at::IntArrayRef sizes,
                                        const at::TensorOptions& options) override {
    return parts_.local.empty_shared(sizes, options);
  }
  [[nodiscard]] std::shared_ptr<BlockingEngine> subset(std::span<const int> ranks,
                                                       const std::string& name, int rank,
                                                       Duration timeout) override;
  // Subgroups on one host need only the inner engine.
  [[nodiscard]] std::shared_ptr<Backend> backend_of(std::span<const int> ranks,
                                                    const std::string& name) override;

 private:
  std::shared_ptr<Backend> inside_;  // null if this rank is alone on its host
  std::shared_ptr<Backend> across_;  // all ranks
  std::vector<std::string> hosts_;
  Parts parts_;
};

Parts make_parts(const std::shared_ptr<Backend>& inside, const std::shared_ptr<Backend>& across,
                 std::span<const std::string> hosts, const std::string& group, int rank) {
  auto layout = make_layout(hosts, rank);
  Parts parts{.layout = layout,
              .local = {inside, inside_name(group, layout.host), practically_never},
              .across = std::nullopt,
              .all = {across, group, practically_never}};
  if (!layout.is_across()) return parts;
  auto ranks = layout.across();
  auto name = across_name(group, layout.is_even() ? layout.place : 0);
  auto equals = ranks.size() > 1 ? across->subset(ranks, name) : nullptr;
  parts.across = Group(std::move(equals), name, practically_never);
  return parts;
}

HierarchicalRunner::HierarchicalRunner(std::shared_ptr<Backend> inside,
                                       std::shared_ptr<Backend> across,
                                       std::vector<std::string> hosts, const std::string& group,
                                       int rank)
    : inside_(std::move(inside)),
      across_(std::move(across)),
      hosts_(std::move(hosts)),
      parts_(make_parts(inside_, across_, hosts_, group, rank)) {}

void HierarchicalRunner::close(std::string_view reason) noexcept {
  for (auto* part : {&parts_.local, parts_.across ? &*parts_.across : nullptr, &parts_.all}) {
    try {
      if (part != nullptr) part->abort(reason);
    } catch (const std::exception&) {
      // The subgroup is dead already, or its peers are unreachable.
    }
  }
}

std::shared_ptr<Backend> HierarchicalRunner::backend_of(std::span<const int> ranks,
                                                        const std::string& name) {
  std::vector<int> places;
  for (const int rank : ranks) {
    if (parts_.layout.host_of(rank) != parts_.layout.host) return nullptr;
    places.push_back(parts_.layout.place_of(rank));
  }
  return inside_->subset(places, name);
}

std::shared_ptr<BlockingEngine> HierarchicalRunner::subset(std::span<const int> ranks,
                                                           const std::string& name, int rank,
                                                           Duration) {
  std::vector<std::string> hosts;
  for (int member : ranks) hosts.push_back(hosts_.at(member));
  auto layout = make_layout(hosts, rank);
  std::vector<int> neighbours;  // as ranks of `inside_`
  for (int member : layout.local()) neighbours.push_back(parts_.layout.place_of(ranks[member]));
  auto inside =
      neighbours.size() > 1 ? inside_->subset(neighbours, inside_name(name, layout.host)) : nullptr;
  auto across = across_->subset(ranks, name);
  return std::make_shared<HierarchicalRunner>(std::move(inside), std::move(across),
                                              std::move(hosts), name, rank);
}

}  // namespace

std::shared_ptr<Backend> make(std::shared_ptr<Store> store, int rank, const Options& options,
                              const MakeEngine& inside, const MakeEngine& across) {
  auto layout = make_layout(options.hosts, rank);
  auto size = layout.size();
  std::shared_ptr<Backend> local;
  if (layout.local().size() > 1) {
    auto place = std::make_shared<PrefixStore>(formatted("host/{}/", layout.host), store);
    local = inside(std::move(place), layout.place, layout.local());
  }
  auto all = across(std::make_shared<PrefixStore>("across/", store), rank, all_ranks(size));
  auto runner = std::make_shared<HierarchicalRunner>(std::move(local), std::move(all),
                                                     options.hosts, "world", rank);
  return sys::make_shared_of_process<BlockingBackend>(
      std::move(runner), std::move(store), GroupNames(), rank, size, options.join_timeout);
}

}  // namespace lockstep::hierarchical
