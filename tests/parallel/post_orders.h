// PostOrders: runs ranks as threads and records the order in which each rank posts its operations,
// over all groups. If one order of all operations exists that every rank follows, operations cannot
// deadlock, even if a device can execute only one at a time.
#pragma once

#include <lockstep/comm/backend.h>
#include <lockstep/comm/local.h>

#include "base/format.h"
#include "comm/backends/local/backend.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {

class PostOrders {
 public:
  static constexpr auto timeout = std::chrono::seconds(60);

  // Runs body(group) in `size` threads and records their posts on the group and its subgroups.
  void run(int size, const std::function<void(Group)>& body) {
    posts_ = std::vector<Posts>(static_cast<std::size_t>(size));
    auto world = std::make_shared<local::World>(size, GroupNames());
    run_as_threads(size, [&](const Group& threads) {
      const auto rank = threads.rank();
      auto backend = std::make_shared<local::LocalBackend>(world, rank, size);
      Posts& posts = posts_[static_cast<std::size_t>(rank)];
      body(Group(std::make_shared<Noting>(std::move(backend), "world", posts), "world", timeout));
    });
  }

  // Returns the operations that a rank has posted, such as "world 0->1 #3 '0F1'".
  [[nodiscard]] const std::vector<std::string>& of(int rank) const {
    return posts_[static_cast<std::size_t>(rank)].all;
  }

  // Returns a cycle of operations as text, in which some rank posts each operation before the next
  // one; an empty text if an order exists that all ranks follow.
  [[nodiscard]] std::string circle() const {
    std::map<std::string, std::map<std::string, int>> earlier;  // than an operation, by which rank
    for (std::size_t rank = 0; rank < posts_.size(); ++rank) {
      const std::vector<std::string>& all = posts_[rank].all;
      for (std::size_t i = 0; i < all.size(); ++i) {
        earlier[all[i]];
        if (i > 0) earlier[all[i]].emplace(all[i - 1], static_cast<int>(rank));
      }
    }
    remove_first_ones(earlier);
    return earlier.empty() ? "" : circle_in(earlier);
  }

 private:
  using Earlier = std::map<std::string, std::map<std::string, int>>;

  struct Posts {
    std::mutex mutex;
    std::vector<std::string> all;
  };

  // Records each call of one rank and forwards it.
  class Noting final : public Backend {
   public:
    Noting(std::shared_ptr<Backend> inner, std::string group, Posts& posts)
        : Backend(inner->rank(), inner->size()),
          inner_(std::move(inner)),
          group_(std::move(group)),
          posts_(posts) {}

    [[nodiscard]] std::string_view name() const override { return inner_->name(); }
    void post(const Call& call) override {
      const ChannelKey& channel = call.id.channel;
      const std::string pair = channel.is_collective()
                                   ? std::string(name_of(call.collective))
                                   : formatted("{}->{}", channel.source, channel.destination);
      {
        const std::lock_guard lock(posts_.mutex);
        posts_.all.push_back(formatted("{} {} #{} '{}'", group_, pair, call.id.number, call.tag));
      }
      inner_->post(call);
    }
    void wait(CallId id) override { inner_->wait(id); }
    [[nodiscard]] bool done(CallId id) override { return inner_->done(id); }
    [[nodiscard]] at::Tensor empty_shared(at::IntArrayRef sizes,
                                          const at::TensorOptions& options) override {
      return inner_->empty_shared(sizes, options);
    }
    [[nodiscard]] at::Tensor empty_node_shared(at::IntArrayRef sizes,
                                               const at::TensorOptions& options,
                                               const Agree& agree) override {
      return inner_->empty_node_shared(sizes, options, agree);
    }
    [[nodiscard]] std::shared_ptr<Backend> subset(std::span<const int> ranks,
                                                  std::string_view name) override {
      return std::make_shared<Noting>(inner_->subset(ranks, name), std::string(name), posts_);
    }
    void abort(std::string_view reason) override { inner_->abort(reason); }

   private:
    const std::shared_ptr<Backend> inner_;
    const std::string group_;
    Posts& posts_;
  };

  // Removes all operations that are neither in a cycle nor after one.
  static void remove_first_ones(Earlier& earlier) {
    std::map<std::string, std::vector<std::string>> later;
    std::map<std::string, std::size_t> before;
    std::vector<std::string> first;
    for (const auto& [operation, others] : earlier) {
      for (const auto& [other, rank] : others) later[other].push_back(operation);
      before[operation] = others.size();
      if (others.empty()) first.push_back(operation);
    }
    while (!first.empty()) {
      const std::string operation = std::move(first.back());
      first.pop_back();
      earlier.erase(operation);
      for (const std::string& next : later[operation])
        if (--before[next] == 0) first.push_back(next);
    }
  }

  // Precondition: each operation in `earlier` has an earlier one in it.
  static std::string circle_in(const Earlier& earlier) {
    std::vector<std::string> path;  // from later ones to earlier ones
    std::vector<std::string> lines;
    std::string at = earlier.begin()->first;
    while (std::ranges::find(path, at) == path.end()) {
      path.push_back(at);
      for (const auto& [other, rank] : earlier.at(at))
        if (earlier.contains(other)) {
          lines.push_back(formatted("rank {} posts {} before {}\n", rank, other, at));
          at = other;
          break;
        }
    }
    std::string text;
    const auto first = std::ranges::find(path, at) - path.begin();
    for (auto i = static_cast<std::size_t>(first); i < lines.size(); ++i) text += lines[i];
    return text;
  }

  std::vector<Posts> posts_;
};

}  // namespace lockstep::test
