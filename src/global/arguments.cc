#include "global/arguments.h"

#include "base/fingerprint.h"
#include "base/format.h"
#include "global/decide.h"

#include <lockstep/base/error.h>

#include <ATen/core/List.h>
#include <c10/util/StringUtil.h>

#include <bit>
#include <functional>
#include <optional>

namespace lockstep::global {
namespace {

// First word of each entry in a key: the kind of the entry.
enum Mark : std::uint64_t { global_mark = 1, number_mark, plain_mark, none_mark, list_mark, other };

std::uint64_t word_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

Arguments::Arguments(const Operation& operation, std::span<c10::IValue> values,
                     MeshContext& context)
    : operation_(operation), context_(context) {
  key.add(word_of(&operation));
  for (std::size_t i = 0; i < values.size(); ++i) {
    auto argument = static_cast<int>(i);
    if (values[i].isTensor() && values[i].toTensor().defined()) {
      add(std::move(values[i]).toTensor(), argument, -1, operation.written[i]);
    } else {
      add_value(values[i], argument, operation.written[i], operation.ignored[i]);
    }
  }
  if (is_mixed) return;
  if (has_plain_) take_plain();
  if (!operation.statistics || !values[operation.statistics->training].toBool()) return;
  for (TensorArgument& one : tensors)
    one.written |= static_cast<std::size_t>(one.argument) >= operation.statistics->first &&
                   static_cast<std::size_t>(one.argument) <= operation.statistics->last;
}

void Arguments::add(at::Tensor tensor, int argument, int element, bool written) {
  if (!tensor.defined()) return key.add(none_mark);
  GlobalTensor* global = global_of(tensor);
  const at::Tensor& kept =
      tensors.emplace_back(TensorArgument{std::move(tensor), global, argument, element, written})
          .tensor;
  if (global != nullptr) {
    if (global->spec->context != &context_) {
      is_mixed = global->spec->context->has_ranks_of(context_);
      if (is_mixed) return;
      throw InvalidArgument(
          formatted("{}: expected tensors of one mesh, found mesh {} and another mesh {}; move a "
                    "tensor to another mesh by full_tensor() and distribute()",
                    operation_.name, context_.name(), global->spec->context->name()));
    }
    key.add(global_mark);
    return key.add(word_of(global->spec.get()));
  }
  // LibTorch's gradient formulas turn numbers into such tensors.
  bool is_number = kept.dim() == 0;
  if (is_number && !written) {
    key.add(number_mark);
    return key.add(static_cast<std::uint64_t>(kept.scalar_type()));
  }
  has_plain_ = true;
  key.add(plain_mark);
  key.add(static_cast<std::uint64_t>(kept.scalar_type()));
  key.add(static_cast<std::uint64_t>(kept.dim()));
  for (std::int64_t size : kept.sizes()) key.add(static_cast<std::uint64_t>(size));
  for (std::int64_t stride : kept.strides()) key.add(static_cast<std::uint64_t>(stride));
}

void Arguments::add_value(const c10::IValue& value, int argument, bool written, bool ignored) {
  if (value.isNone() || value.isTensor()) return key.add(none_mark);  // None or an undefined tensor
  if (value.isList()) {
    auto elements = value.toListRef();
    key.add(list_mark << 32 | elements.size());
    int number = 0;
    for (const c10::IValue& element : elements) {
      if (element.isTensor()) {
        has_list = true;
        add(element.toTensor(), argument, number, written);
      } else {
        add_value(element, argument, written, ignored);
      }
      ++number;
    }
    return;
  }
  key.add(other);
  if (ignored) return key.add(value.isDouble() ? 1 : value.isInt() ? 2 : 3);
  if (value.isInt()) return key.add(static_cast<std::uint64_t>(value.toInt()));
  if (value.isBool()) return key.add(value.toBool() ? 1 : 2);
  if (value.isDouble()) return key.add(std::bit_cast<std::uint64_t>(value.toDouble()));
  if (value.isString()) return key.add(std::hash<std::string>()(value.toStringRef()));
  if (value.isDevice())
    return key.add(static_cast<std::uint64_t>(std::hash<c10::Device>()(value.toDevice())));
  if (value.isGenerator()) return;
  key.can_be_remembered = false;
}

// Checks the plain tensors. Call once the context is final.
void Arguments::take_plain() const {
  const bool is_allowed = context_.options.load().replicate_plain;
  for (const TensorArgument& one : tensors) {
    if (one.global != nullptr || (one.tensor.dim() == 0 && !one.written)) continue;
    if (!is_allowed || one.written) refuse_plain(one);
    context_.plain_check.look(one.tensor, operation_.name, context_.all());
  }
}

void Arguments::give_back(std::span<c10::IValue> values) {
  for (TensorArgument& one : tensors)
    if (one.element < 0) values[static_cast<std::size_t>(one.argument)] = std::move(one.tensor);
}

void Arguments::refuse_plain(const TensorArgument& plain) const {
  // Throws another error if global tensors cannot take part at all.
  check_is_possible(operation_, *this, context_);
  throw InvalidArgument(formatted(
      "{}: expected global tensors on mesh {}, found a plain {} tensor of sizes {} as argument {}; "
      "distribute() makes it global, and set_global_options(mesh, {{.replicate_plain = true}}) "
      "lets "
      "plain tensors count as replicated where they are only read; the mesh of a model is "
      "that of its parameters, mesh_of()",
      operation_.name, context_.name(), c10::toString(plain.tensor.scalar_type()),
      c10::str(plain.tensor.sizes()), plain.argument));
}

std::string describe_placements(const Arguments& arguments) {
  std::vector<std::string> texts;
  for (const TensorArgument& one : arguments.tensors)
    texts.push_back(one.global != nullptr ? describe(one.global->spec->placements) : "plain");
  return listed(texts, ", ");
}

namespace {

// Returns a list like `old`, with tensors[0], tensors[1], ... at the positions `elements`.
c10::IValue with_tensors(const c10::IValue& old, std::span<const at::Tensor> tensors,
                         const Arguments& arguments, std::size_t first) {
  auto is_of_this_list = [&](std::size_t i, std::size_t element) {
    return i < arguments.tensors.size() &&
           arguments.tensors[i].argument == arguments.tensors[first].argument &&
           arguments.tensors[i].element == static_cast<int>(element);
  };
  auto elements = old.toListRef();
  std::size_t next = first;
  if (old.isTensorList()) {
    c10::List<at::Tensor> list;
    list.reserve(elements.size());
    for (std::size_t i = 0; i < elements.size(); ++i)
      list.push_back(is_of_this_list(next, i) ? tensors[next++] : elements[i].toTensor());
    return list;
  }
  c10::List<std::optional<at::Tensor>> list;
  list.reserve(elements.size());
  for (std::size_t i = 0; i < elements.size(); ++i) {
    if (is_of_this_list(next, i)) {
      list.push_back(tensors[next++]);
    } else {
      list.push_back(elements[i].toOptional<at::Tensor>());
    }
  }
  return list;
}

}  // namespace

void put_tensors(const Arguments& arguments, std::span<const at::Tensor> tensors,
                 std::span<c10::IValue> values) {
  for (std::size_t i = 0; i < arguments.tensors.size(); ++i) {
    const TensorArgument& one = arguments.tensors[i];
    auto& value = values[static_cast<std::size_t>(one.argument)];
    if (one.element < 0) {
      value = tensors[i];
    } else if (i == 0 || arguments.tensors[i - 1].argument != one.argument) {
      value = with_tensors(value, tensors, arguments, i);
    }
  }
}

std::vector<at::Tensor> tensors_in(std::span<const c10::IValue> values) {
  std::vector<at::Tensor> all;
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      all.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const c10::IValue& element : value.toListRef()) all.push_back(element.toTensor());
    }
  }
  return all;
}

}  // namespace lockstep::global
