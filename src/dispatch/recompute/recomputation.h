// Recomputation: what the blocks of one model whose activations are computed again have in common.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::dispatch {

// Thread-safe.
class Recomputation {
 public:
  struct Counts {
    std::int64_t blocks = 0;             // left, in forwards
    std::int64_t released_bytes = 0;     // then
    std::int64_t recomputed_blocks = 0;  // of which something was computed again
    std::int64_t operations = 0;         // that ran again
  };

  // `kept`: operations whose results stay ("aten::mm").
  explicit Recomputation(std::set<std::string> kept) : kept_(std::move(kept)) {}

  [[nodiscard]] bool keeps(const std::string& operation) const { return kept_.contains(operation); }
  [[nodiscard]] Counts counts() const;
  void reset_counts();

  // Result `number` of a block is used outside of it, in forward: it stays from the next time on.
  [[nodiscard]] bool is_used_outside(int block, std::size_t number) const;
  void note_use_outside(int block, std::size_t number);

  void count_end(std::int64_t bytes);
  void count_replay(std::int64_t operations);

 private:
  const std::set<std::string> kept_;
  mutable std::mutex mutex_;
  std::set<std::pair<int, std::size_t>> used_outside_;
  Counts counts_;
};

// A use of this parameter in forward is where a pass through `block` begins, unless it is in it
// already; block -1: where the one before ends. Stays with the parameter, whatever memory it gets.
void mark_block(const at::Tensor& parameter, std::shared_ptr<Recomputation> model, int block);
// Whether a parameter has been marked.
[[nodiscard]] bool has_block_mark(const at::Tensor& parameter);

// A pass through a model has ended on this thread: `results` stay.
void leave_block(const std::vector<at::Tensor>& results);

// Nothing is recorded on this thread while one of these lives.
class [[nodiscard]] BlockPause {
 public:
  BlockPause();
  ~BlockPause();
  BlockPause(const BlockPause&) = delete;
  BlockPause& operator=(const BlockPause&) = delete;
};

}  // namespace lockstep::dispatch
