// A restricted reader of Python's pickles (CPython, Lib/pickletools.py documents each opcode).
//
// It builds a tree of plain values and executes nothing: a call of a global, such as
// torch._utils._rebuild_tensor_v2, stays in the tree as a name and its arguments, and the caller
// interprets it. It knows the opcodes that torch.save() and pickle.dump() write for state_dicts,
// and the given globals; for any other one throws BadInput in a line that names it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::checkpoint {

class Pickle {
 public:
  enum class Kind : std::uint8_t {
    none,
    boolean,     // integer
    integer,     // integer
    real,        // real
    text,        // text, UTF-8
    bytes,       // text
    list,        // items
    tuple,       // items
    dict,        // items: alternating keys and values, in the file's order
    global,      // integer: index among the allowed names
    call,        // items: a global and a tuple; state, if any
    persistent,  // items: the id of an object outside of the pickle
  };
  using Ref = std::uint32_t;
  static constexpr Ref nothing = std::numeric_limits<Ref>::max();

  struct Node {
    Kind kind = Kind::none;
    Ref state = nothing;
    std::int64_t integer = 0;
    double real = 0;
    std::string_view text = {};
    std::vector<Ref> items = {};
  };

  static constexpr std::size_t most_bytes = 256 << 20;
  static constexpr std::size_t most_nodes = 8 << 20;

  // `globals`: full names, which must outlive this object. Throws BadInput without naming the file,
  // also for more than `most` values. Time and memory are linear in the length of `pickle`.
  Pickle(std::string pickle, std::span<const std::string_view> globals,
         std::size_t most = most_nodes);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  [[nodiscard]] Ref root() const { return root_; }
  [[nodiscard]] const Node& operator[](Ref ref) const { return nodes_[ref]; }
  // Returns the name of a global; empty for any other node.
  [[nodiscard]] std::string_view global(Ref ref) const;
  // Returns the name of the global that a call calls; empty for any other node.
  [[nodiscard]] std::string_view called(Ref ref) const;

 private:
  friend class PickleMachine;

  const std::string pickle_;
  const std::span<const std::string_view> globals_;
  const std::size_t most_;
  std::vector<Node> nodes_;
  Ref root_ = nothing;
};

// Returns "a list", for messages.
[[nodiscard]] std::string_view name_of(Pickle::Kind kind);

}  // namespace lockstep::checkpoint
