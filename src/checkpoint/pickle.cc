#include "checkpoint/pickle.h"

#include "base/check.h"
#include "base/escaped.h"

#include <array>
#include <bit>
#include <cstring>
#include <utility>

namespace lockstep::checkpoint {

using Kind = Pickle::Kind;
using Node = Pickle::Node;
using Ref = Pickle::Ref;

// The stack and the memo while a pickle is read.
class PickleMachine {
 public:
  explicit PickleMachine(Pickle& tree) : tree_(tree), left_(tree.pickle_) {
    for (std::size_t i = 0; i < tree.globals_.size(); ++i) globals_.emplace(tree.globals_[i], i);
  }

  void run() {
    for (;;) {
      at_ = tree_.pickle_.size() - left_.size();
      const auto code = next<std::uint8_t>();
      if (code == '.') break;
      constant(code);
    }
    if (stack_.size() != 1 || !marks_.empty()) fail("expected one value at the end, found others");
    if (!left_.empty()) fail(formatted("bytes after the end: {}", left_.size()));
    tree_.root_ = stack_.back();
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw BadInput(formatted("the pickle's byte {}: {}", at_, what));
  }

  std::string_view take(std::uint64_t bytes) {
    if (bytes > left_.size())
      fail(formatted("expected {} more bytes, found {}", bytes, left_.size()));
    const std::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }
  template <class T>
  T next() {
    T value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view line() {
    const std::size_t end = left_.find('\n');
    if (end == std::string_view::npos) fail("a name is not terminated");
    const std::string_view taken = take(end);
    take(1);
    return taken;
  }

  void push(Ref ref) { stack_.push_back(ref); }
  void push(Node node) {
    if (tree_.nodes_.size() >= tree_.most_) fail(formatted("more than {} values", tree_.most_));
    tree_.nodes_.push_back(std::move(node));
    push(static_cast<Ref>(tree_.nodes_.size() - 1));
  }
  void push_integer(std::int64_t value) { push({.kind = Kind::integer, .integer = value}); }
  void push_text(std::string_view text) {
    for (std::string_view rest = text; !rest.empty();) {
      const auto character = first_character(rest);
      if (!character) fail(formatted("string '{}' is not UTF-8", escaped(text)));
      rest.remove_prefix(character->bytes);
    }
    push({.kind = Kind::text, .text = text});
  }

  // Values below the last mark do not belong to this opcode.
  void need(std::size_t count) const {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() - floor < count) fail("an opcode without its operands");
  }
  std::vector<Ref> pop(std::size_t count) {
    need(count);
    std::vector<Ref> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return items;
  }
  std::vector<Ref> pop_to_mark() {
    if (marks_.empty()) fail("an opcode without its mark");
    std::vector<Ref> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()),
                           stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }

  void push_long(std::uint64_t bytes) {
    if (bytes > sizeof(std::int64_t))
      fail(formatted("expected an integer of at most 8 bytes, found one of {}", bytes));
    const std::string_view digits = take(bytes);
    std::int64_t value =
        !digits.empty() && static_cast<signed char>(digits.back()) < 0 ? std::int64_t{-1} : 0;
    std::memcpy(&value, digits.data(), digits.size());
    push_integer(value);
  }

  // Runs one opcode: a constant, or one of structure() or memo().
  void constant(std::uint8_t code) {
    switch (code) {
      case 0x80: {  // PROTO
        const auto protocol = next<std::uint8_t>();
        if (at_ != 0 || protocol < 2 || protocol > 5)
          fail(formatted("expected protocol 2 to 5 at the beginning, found {}", protocol));
        return;
      }
      case 0x95:
        (void)next<std::uint64_t>();
        return;  // FRAME: a hint for buffering
      case 'N':
        return push({.kind = Kind::none});
      case 0x88:
        return push({.kind = Kind::boolean, .integer = 1});
      case 0x89:
        return push({.kind = Kind::boolean, .integer = 0});
      case 'J':
        return push_integer(next<std::int32_t>());
      case 'K':
        return push_integer(next<std::uint8_t>());
      case 'M':
        return push_integer(next<std::uint16_t>());
      case 0x8a:
        return push_long(next<std::uint8_t>());
      case 0x8b:
        return push_long(next<std::uint32_t>());
      case 'G':
        return push({.kind = Kind::real,
                     .real = std::bit_cast<double>(__builtin_bswap64(next<std::uint64_t>()))});
      case 'X':
        return push_text(take(next<std::uint32_t>()));
      case 0x8c:
        return push_text(take(next<std::uint8_t>()));
      case 0x8d:
        return push_text(take(next<std::uint64_t>()));
      case 'B':
        return push({.kind = Kind::bytes, .text = take(next<std::uint32_t>())});
      case 'C':
        return push({.kind = Kind::bytes, .text = take(next<std::uint8_t>())});
      case 0x8e:
        return push({.kind = Kind::bytes, .text = take(next<std::uint64_t>())});
      default:
        return structure(code);
    }
  }

  void structure(std::uint8_t code) {
    switch (code) {
      case '(':
        return marks_.push_back(stack_.size());
      case ')':
        return push({.kind = Kind::tuple});
      case 't':
        return push({.kind = Kind::tuple, .items = pop_to_mark()});
      case 0x85:
      case 0x86:
      case 0x87:
        return push({.kind = Kind::tuple, .items = pop(code - 0x84U)});
      case ']':
        return push({.kind = Kind::list});
      case '}':
        return push({.kind = Kind::dict});
      case 'a':
        return append(pop(1), Kind::list);
      case 'e':
        return append(pop_to_mark(), Kind::list);
      case 's':
        return append(pop(2), Kind::dict);
      case 'u':
        return append(pop_to_mark(), Kind::dict);
      case 'c': {
        const std::string_view module = line();
        return push_global(module, line());
      }
      case 0x93: {  // STACK_GLOBAL
        const std::vector<Ref> names = pop(2);
        const Node &module = tree_[names[0]], &name = tree_[names[1]];
        if (module.kind != Kind::text || name.kind != Kind::text)
          fail("expected a global's module and name as strings");
        return push_global(module.text, name.text);
      }
      case 'R':   // REDUCE
      case 0x81:  // NEWOBJ
        return push_call(pop(2));
      case 'b': {  // BUILD
        const Ref state = pop(1)[0];
        need(1);
        return set_state(stack_.back(), state);
      }
      case 'Q':
        return push({.kind = Kind::persistent, .items = pop(1)});
      default:
        return memo(code);
    }
  }

  void append(std::vector<Ref> items, Kind expected) {
    need(1);
    Node& target = tree_.nodes_[stack_.back()];
    if (target.kind != expected)
      fail(formatted("expected {} to add to, found {}", name_of(expected), name_of(target.kind)));
    if (expected == Kind::dict && items.size() % 2 != 0) fail("a key without its value");
    target.items.insert(target.items.end(), items.begin(), items.end());
  }

  void push_global(std::string_view module, std::string_view name) {
    const std::string full = formatted("{}.{}", escaped(module), escaped(name));
    const auto found = globals_.find(full);
    if (found == globals_.end())
      fail(
          formatted("asks for {}, which a state_dict of plain tensors does not need; nothing in "
                    "the file is executed",
                    full));
    push({.kind = Kind::global, .integer = static_cast<std::int64_t>(found->second)});
  }

  void push_call(std::vector<Ref> call) {
    if (tree_[call[0]].kind != Kind::global || tree_[call[1]].kind != Kind::tuple)
      fail(formatted("expected a call of a global with a tuple, found {} and {}",
                     name_of(tree_[call[0]].kind), name_of(tree_[call[1]].kind)));
    // An ordered dict becomes an ordinary dict, whose items keep the file's order.
    if (tree_.global(call[0]) == "collections.OrderedDict" && tree_[call[1]].items.empty())
      push({.kind = Kind::dict});
    else
      push({.kind = Kind::call, .items = std::move(call)});
  }

  // A dict's state is its attributes, like the _metadata of a module's state_dict(): ignored.
  void set_state(Ref object, Ref state) {
    Node& target = tree_.nodes_[object];
    if (target.kind == Kind::dict) return;
    if (target.kind != Kind::call || target.state != Pickle::nothing)
      fail(formatted("expected an object to give a state to, found {}", name_of(target.kind)));
    target.state = state;
  }

  void memo(std::uint8_t code) {
    switch (code) {
      case 'q':
        return put(next<std::uint8_t>());
      case 'r':
        return put(next<std::uint32_t>());
      case 0x94:
        return put(memo_.size());
      case 'h':
        return get(next<std::uint8_t>());
      case 'j':
        return get(next<std::uint32_t>());
      default:
        fail(formatted("opcode {:#04x} does not occur in a state_dict", unsigned{code}));
    }
  }
  void put(std::uint64_t place) {
    need(1);
    if (memo_.size() >= tree_.most_) fail("the memo holds too many values");
    memo_[place] = stack_.back();
  }
  void get(std::uint64_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) fail(formatted("the memo has no value {}", place));
    push(found->second);
  }

  Pickle& tree_;
  std::string_view left_;
  std::size_t at_ = 0;
  std::vector<Ref> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Ref> memo_;  // the cPickle of Python 2 begins at 1
  std::unordered_map<std::string_view, std::size_t> globals_;
};

Pickle::Pickle(std::string pickle, std::span<const std::string_view> globals, std::size_t most)
    : pickle_(std::move(pickle)), globals_(globals), most_(most) {
  check_input(pickle_.size() <= most_bytes, "expected a pickle of at most {} bytes, found {}",
              most_bytes, pickle_.size());
  PickleMachine(*this).run();
}

std::string_view Pickle::global(Ref ref) const {
  const Node& node = nodes_[ref];
  if (node.kind != Kind::global) return {};
  return globals_[static_cast<std::size_t>(node.integer)];
}

std::string_view Pickle::called(Ref ref) const {
  const Node& node = nodes_[ref];
  return node.kind == Kind::call ? global(node.items[0]) : std::string_view();
}

std::string_view name_of(Kind kind) {
  constexpr std::array names{"None",     "a bool", "an integer", "a number",
                             "a string", "bytes",  "a list",     "a tuple",
                             "a dict",   "a name", "an object",  "a storage"};
  return names[static_cast<std::size_t>(kind)];
}

}  // namespace lockstep::checkpoint
