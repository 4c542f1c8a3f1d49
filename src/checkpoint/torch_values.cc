#include "checkpoint/torch_values.h"

#include "base/check.h"
#include "base/escaped.h"
#include "sys/topology.h"

#include <ATen/core/List.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace lockstep::checkpoint {
namespace {

using Kind = Pickle::Kind;
using Ref = Pickle::Ref;

constexpr int most_nested_values = 100;
constexpr std::size_t most_tensor_dims = 64;  // the limit of LibTorch's operations

constexpr std::string_view tensor_v2 = "torch._utils._rebuild_tensor_v2";
constexpr std::string_view tensor_v3 = "torch._utils._rebuild_tensor_v3";
constexpr std::string_view rebuilt_parameter = "torch._utils._rebuild_parameter";

class Values {
 public:
  Values(const Pickle& pickle, const ReadStorage& read_storage)
      : pickle_(pickle), read_storage_(read_storage) {}

  c10::IValue of(Ref ref, int depth = 0) {
    if (auto known = known_.find(ref); known != known_.end()) {
      check_input(known->second.has_value(), "the pickle has a value that contains itself");
      return *known->second;
    }
    check_input(depth <= most_nested_values, "the pickle nests its values deeper than {}",
                most_nested_values);
    known_.emplace(ref, std::nullopt);
    c10::IValue value = make(ref, depth);
    known_[ref] = value;
    return value;
  }

 private:
  c10::IValue make(Ref ref, int depth) {
    const Pickle::Node& node = pickle_[ref];
    switch (node.kind) {
      case Kind::none:
        return {};
      case Kind::boolean:
        return node.integer != 0;
      case Kind::integer:
        return node.integer;
      case Kind::real:
        return node.real;
      case Kind::text:
        return std::string(node.text);
      case Kind::bytes:
        return bytes(node.text);
      case Kind::list:
        return list(node, depth);
      case Kind::tuple:
        return tuple(node, depth);
      case Kind::dict:
        return dict(node, depth);
      case Kind::global:
        return global(ref);
      case Kind::call:
        return call(ref, depth);
      case Kind::persistent:
        break;
    }
    throw BadInput("expected a storage within a tensor only, found one by itself");
  }

  static at::Tensor bytes(std::string_view text) {
    at::Tensor values = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
    std::memcpy(values.mutable_data_ptr(), text.data(), text.size());
    return values;
  }

  c10::IValue list(const Pickle::Node& node, int depth) {
    c10::impl::GenericList values(c10::AnyType::get());
    values.reserve(node.items.size());
    for (const Ref item : node.items) values.push_back(of(item, depth + 1));
    return values;
  }

  c10::IValue tuple(const Pickle::Node& node, int depth) {
    std::vector<c10::IValue> values;
    values.reserve(node.items.size());
    for (const Ref item : node.items) values.push_back(of(item, depth + 1));
    return c10::ivalue::Tuple::create(std::move(values));
  }

  c10::IValue dict(const Pickle::Node& node, int depth) {
    c10::impl::GenericDict values(c10::AnyType::get(), c10::AnyType::get());
    values.reserve(node.items.size() / 2);
    for (std::size_t i = 0; i + 1 < node.items.size(); i += 2) {
      const Pickle::Node& key = pickle_[node.items[i]];
      check_input(key.kind == Kind::text || key.kind == Kind::integer,
                  "expected a dict's key to be a string or an integer, found {}",
                  name_of(key.kind));
      const bool is_new =
          values.insert(of(node.items[i], depth + 1), of(node.items[i + 1], depth + 1)).second;
      check_input(is_new, "a dict has the key '{}' twice",
                  key.kind == Kind::text ? escaped(key.text) : formatted("{}", key.integer));
    }
    return values;
  }

  // Converts a dtype to a string.
  c10::IValue global(Ref ref) const {
    const std::string_view name = pickle_.global(ref);
    check_input(find_torch_dtype(name) != nullptr, "expected a value, found the name {}", name);
    return std::string(name);
  }

  c10::IValue call(Ref ref, int depth) {
    const std::string_view name = pickle_.called(ref);
    const std::vector<Ref>& arguments = pickle_[pickle_[ref].items[1]].items;
    check_input(pickle_[ref].state == Pickle::nothing, "expected {} without a state, found one",
                name);
    if (name == tensor_v2 || name == tensor_v3) return tensor(arguments, name == tensor_v3);
    if (name == rebuilt_parameter) {
      check_input(arguments.size() == 3 &&
                      pickle_.called(arguments[0]).starts_with("torch._utils._rebuild_tensor_v"),
                  "expected a tensor in {}", name);
      return of(arguments[0], depth + 1);
    }
    if (name == "torch.Size") {
      std::vector<c10::IValue> sizes;
      for (const std::int64_t size : numbers_of(pickle_, ref)) sizes.emplace_back(size);
      return c10::ivalue::Tuple::create(std::move(sizes));
    }
    if (name == "_codecs.encode") return latin1(arguments);
    if (name == "collections.Counter" && arguments.size() == 1)  // milestones of a scheduler
      return of(arguments[0], depth + 1);
    // A device or a layout, as a string.
    check_input((name == "torch.device" || name == "torch.serialization._get_layout") &&
                    !arguments.empty() && pickle_[arguments[0]].kind == Kind::text,
                "expected a value, found a call of {}", name);
    std::string text(pickle_[arguments[0]].text);
    if (arguments.size() < 2) return text;
    check_input(name == "torch.device" && arguments.size() == 2 &&
                    pickle_[arguments[1]].kind == Kind::integer,
                "expected a device with a number in a call of {}", name);
    return formatted("{}:{}", text, pickle_[arguments[1]].integer);
  }

  // Protocol 2 stores bytes as characters up to U+00FF.
  c10::IValue latin1(const std::vector<Ref>& arguments) const {
    check_input(arguments.size() == 2 && pickle_[arguments[0]].kind == Kind::text &&
                    pickle_[arguments[1]].text == "latin1",
                "expected bytes as a string in latin1");
    std::string decoded;
    const std::string_view text = pickle_[arguments[0]].text;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto letter = static_cast<unsigned char>(text[i]);
      if (letter < 0x80) {
        decoded += text[i];
        continue;
      }
      check_input(letter <= 0xc3, "expected bytes as a string in latin1");
      decoded += static_cast<char>((letter << 6) | (text[++i] & 0x3f));
    }
    return bytes(decoded);
  }

  std::int64_t count(Ref ref, const char* what) const {
    const Pickle::Node& node = pickle_[ref];
    check_input(node.kind == Kind::integer && node.integer >= 0,
                "expected a tensor's {} to be an integer of at least 0", what);
    return node.integer;
  }

  struct Storage {
    std::string key;
    std::uint64_t bytes;
    const TorchDtype* dtype;  // null: untyped
  };

  Storage storage(Ref ref) const {
    const bool is_storage = pickle_[ref].kind == Kind::persistent;
    const Pickle::Node& id = pickle_[is_storage ? pickle_[ref].items[0] : ref];
    check_input(is_storage && id.kind == Kind::tuple && id.items.size() == 5 &&
                    pickle_[id.items[0]].text == "storage" &&
                    pickle_[id.items[2]].kind == Kind::text,
                "expected a storage ('storage', type, key, device, size) in a tensor");
    const std::string_view type = pickle_.global(id.items[1]);
    const TorchDtype* dtype = find_torch_storage(type);
    check_input(dtype != nullptr || type == untyped_storage,
                "expected a type of storages, found {}",
                type.empty() ? name_of(pickle_[id.items[1]].kind) : type);
    const std::int64_t size = count(id.items[4], "storage's size");
    return {std::string(pickle_[id.items[2]].text),
            checked_bytes({&size, 1}, dtype != nullptr ? dtype->dtype : at::kByte), dtype};
  }

  at::Tensor tensor(const std::vector<Ref>& arguments, bool has_dtype) {
    const std::size_t fields = has_dtype ? 7 : 6;
    check_input(arguments.size() == fields || arguments.size() == fields + 1,
                "expected a tensor of {} fields, found {}", fields, arguments.size());
    check_input(arguments.size() == fields || pickle_[arguments.back()].kind == Kind::none,
                "expected a tensor without attributes such as conjugation");
    const Storage from = storage(arguments[0]);
    const TorchDtype* dtype =
        has_dtype ? find_torch_dtype(pickle_.global(arguments[6])) : from.dtype;
    check_input(dtype != nullptr, "expected the dtype of a tensor in a storage without a type");
    const std::int64_t offset = count(arguments[1], "offset");
    const std::vector<std::int64_t> sizes = numbers_of(pickle_, arguments[2]),
                                    strides = numbers_of(pickle_, arguments[3]);
    const std::uint64_t elements = from.bytes / c10::elementSize(dtype->dtype);
    check_view(elements, offset, sizes, strides, dtype->dtype);
    const at::Tensor raw = read_storage_(from.key, from.bytes, dtype->dtype);
    // Only a tensor without elements may begin after the end: x[3:, 2:] of 3 rows does.
    const std::int64_t begin = std::min(offset, static_cast<std::int64_t>(elements));
    return at::empty({0}, dtype->dtype).set_(raw.storage(), begin, sizes, strides);
  }

  // Checks that every element of the view lies in the storage, and that the view can be made dense.
  static void check_view(std::uint64_t elements, std::int64_t offset,
                         const std::vector<std::int64_t>& sizes,
                         const std::vector<std::int64_t>& strides, at::ScalarType dtype) {
    const std::string shown = formatted("a tensor of sizes [{}], strides [{}] at element {}",
                                        listed(sizes, ", "), listed(strides, ", "), offset);
    check_input(sizes.size() == strides.size() && sizes.size() <= most_tensor_dims &&
                    std::ranges::all_of(sizes, [](std::int64_t size) { return size >= 0; }) &&
                    std::ranges::all_of(strides, [](std::int64_t stride) { return stride >= 0; }),
                "{} is not valid", shown);
    // If strides are 0, a few bytes may represent any number of elements.
    const std::uint64_t bytes = checked_bytes(sizes, dtype);
    check_input(bytes <= elements * c10::elementSize(dtype) ||
                    bytes <= static_cast<std::uint64_t>(sys::memory_size().total),
                "{} is larger than the memory", shown);
    std::uint64_t last = static_cast<std::uint64_t>(offset);
    bool overflows = false;
    for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
      std::uint64_t reach = 0;
      const auto steps = static_cast<std::uint64_t>(std::max<std::int64_t>(sizes[dim], 1) - 1);
      overflows |=
          __builtin_mul_overflow(steps, static_cast<std::uint64_t>(strides[dim]), &reach) ||
          __builtin_add_overflow(last, reach, &last);
    }
    const bool is_empty = std::ranges::count(sizes, 0) > 0;
    check_input(!overflows && last <= INT64_MAX && (is_empty || last < elements),
                "{} reaches beyond its storage of size {}", shown, elements);
  }

  const Pickle& pickle_;
  const ReadStorage& read_storage_;
  std::unordered_map<Ref, std::optional<c10::IValue>> known_;
};

}  // namespace

const std::vector<std::string_view>& torch_globals() {
  static const std::vector<std::string_view> globals = [] {
    std::vector<std::string_view> names{"collections.OrderedDict",
                                        "collections.Counter",
                                        tensor_v2,
                                        tensor_v3,
                                        rebuilt_parameter,
                                        untyped_storage,
                                        "torch.Size",
                                        "torch.device",
                                        "torch.serialization._get_layout",
                                        "_codecs.encode"};
    for (const TorchDtype& row : torch_dtypes) {
      names.push_back(row.name);
      if (!row.storage.empty()) names.push_back(row.storage);
    }
    return names;
  }();
  return globals;
}

c10::IValue values_of(const Pickle& pickle, const ReadStorage& read_storage) {
  return Values(pickle, read_storage).of(pickle.root());
}

std::vector<std::int64_t> numbers_of(const Pickle& pickle, Ref ref) {
  if (pickle.called(ref) == "torch.Size") {
    const std::vector<Ref>& arguments = pickle[pickle[ref].items[1]].items;
    check_input(arguments.size() == 1, "expected torch.Size with one argument, found {}",
                arguments.size());
    ref = arguments[0];
  }
  check_input(pickle[ref].kind == Kind::tuple || pickle[ref].kind == Kind::list,
              "expected a tuple of integers, found {}", name_of(pickle[ref].kind));
  check_input(pickle[ref].items.size() <= most_tensor_dims, "expected at most {} dims, found {}",
              most_tensor_dims, pickle[ref].items.size());
  std::vector<std::int64_t> numbers;
  for (const Ref item : pickle[ref].items) {
    check_input(pickle[item].kind == Kind::integer, "expected a tuple of integers, found {} in it",
                name_of(pickle[item].kind));
    numbers.push_back(pickle[item].integer);
  }
  return numbers;
}

std::uint64_t checked_bytes(std::span<const std::int64_t> sizes, at::ScalarType dtype) {
  std::uint64_t bytes = c10::elementSize(dtype);
  for (const std::int64_t size : sizes)
    check_input(!__builtin_mul_overflow(
                    bytes, static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1)), &bytes) &&
                    bytes <= INT64_MAX,
                "sizes [{}] are too large", listed(sizes, ", "));
  return std::ranges::count(sizes, 0) > 0 ? 0 : bytes;
}

}  // namespace lockstep::checkpoint
