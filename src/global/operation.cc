#include "global/operation.h"

#include "base/check.h"
#include "base/never_destroyed.h"
#include "dispatch/call.h"
#include "global/rule_line.h"

#include <ATen/core/enum_tag.h>
#include <c10/core/DispatchKey.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace lockstep::global {
namespace {

using c10::DispatchKey;
using c10::OperatorHandle;

// Composite operations that are intercepted as a whole.
bool is_made_of_others(std::string_view name) {
  static const std::unordered_set<std::string_view> names = {"unbind", "stack", "rsub"};
  return names.contains(name);
}

// Operations whose floating-point arguments are options, not values.
bool has_telling_numbers(std::string_view name) {
  static const std::unordered_set<std::string_view> names = {
      "norm",
      "linalg_vector_norm",
      "_foreach_norm",
      "native_dropout",
      "_scaled_dot_product_flash_attention",
      "_scaled_dot_product_flash_attention_backward",
      "_scaled_dot_product_cudnn_attention",
      "_scaled_dot_product_cudnn_attention_backward",
      "_scaled_dot_product_efficient_attention",
      "_scaled_dot_product_efficient_attention_backward"};
  return names.contains(name);
}

// Operations whose result depends on the memory layout of elements, or that change it.
bool needs_memory(std::string_view name) {
  static const std::unordered_set<std::string_view> names = {
      "as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter", "resize", "resize_",
      "resize_as",  "resize_as_",  "_resize_output",  "_resize_output_",    "set",    "set_"};
  return names.contains(name);
}

RuleTable make_table() {
  RuleTable table;
  add_pointwise_rules(table);
  add_matmul_rules(table);
  add_reduction_rules(table);
  add_view_rules(table);
  add_joining_rules(table);
  add_indexing_rules(table);
  add_loss_rules(table);
  add_normalization_rules(table);
  add_batch_norm_rules(table);
  add_random_rules(table);
  add_attention_rules(table);
  add_convolution_rules(table);
  return table;
}

std::string_view short_name(std::string_view name) {
  constexpr std::string_view prefix = "aten::";
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

struct Registry {
  std::mutex mutex;
  RuleTable own = make_table();
  RuleTable registered;  // by full name
  std::unordered_map<const void*, std::unique_ptr<Operation>> operations;
  // Replaced entries are kept, because other threads may still use them.
  std::vector<std::unique_ptr<Operation>> replaced;
};

Registry& registry() {
  static NeverDestroyed<Registry> made;
  return *made;
}

// Number of register_rule() calls.
std::atomic<std::uint64_t> version{1};

RuleFunction rule_for(const OperatorHandle& handle, Registry& registry) {
  const std::string& name = handle.schema().name();
  if (auto found = registry.registered.find(name); found != registry.registered.end())
    return found->second;
  std::string key(short_name(name));
  if (auto found = registry.own.find(key); found != registry.own.end()) return found->second;
  bool is_pointwise =
      handle.hasTag(at::Tag::pointwise) && !handle.hasTag(at::Tag::nondeterministic_seeded);
  return is_pointwise ? pointwise() : RuleFunction();
}

std::string_view without_underscore(std::string_view name) {
  if (name.ends_with('_')) name.remove_suffix(1);
  return name;
}

// LibTorch names the gradient of aten::elu aten::elu_backward. Returns that name if the operation
// exists, has no rule and is not composite; otherwise "".
std::string gradient_without_rule(std::string_view name, Registry& registry) {
  std::string gradient = formatted("{}_backward", without_underscore(name));
  auto found = c10::Dispatcher::singleton().findSchema({gradient, ""});
  if (!found || found->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) return {};
  return rule_for(*found, registry) ? std::string() : gradient;
}

bool is_number(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::GeneratorType:
      return true;
    case c10::TypeKind::OptionalType:
      return is_number(*type.expectRef<c10::OptionalType>().getElementType());
    case c10::TypeKind::ListType:
      return is_number(*type.expectRef<c10::ListType>().getElementType());
    default:
      return false;
  }
}

bool is_tensor(const c10::Type& type) { return type.kind() == c10::TypeKind::TensorType; }

bool is_list_of_tensors(const c10::Type& type) {
  return type.kind() == c10::TypeKind::ListType &&
         is_tensor(*type.expectRef<c10::ListType>().getElementType());
}

void describe_returns(const c10::FunctionSchema& schema, Operation& made) {
  using dispatch::is_written;
  for (const c10::Argument& argument : schema.arguments()) {
    made.written.push_back(is_written(argument));
    made.ignored.push_back(is_number(*argument.type()) &&
                           !has_telling_numbers(short_name(schema.name())));
  }
  for (const c10::Argument& result : schema.returns()) {
    Operation::Return one{.is_tensor = is_tensor(*result.type()),
                          .is_list = is_list_of_tensors(*result.type())};
    if (result.alias_info() != nullptr && !is_written(result)) made.is_view = true;
    for (std::size_t i = 0; i < schema.arguments().size() && is_written(result); ++i) {
      const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
      if (alias != nullptr && alias->isWrite() && *alias == *result.alias_info())
        one.alias = static_cast<int>(i);
    }
    if (one.is_tensor) ++made.tensor_results;
    made.returns.push_back(one);
  }
}

std::unique_ptr<Operation> make_operation(const OperatorHandle& handle, Registry& registry) {
  auto made = std::make_unique<Operation>();
  made->name = handle.schema().name();
  describe_returns(handle.schema(), *made);
  if (made->name == "aten::native_batch_norm" || made->name == "aten::cudnn_batch_norm")
    made->statistics = {3, 4, 5};
  made->rule = rule_for(handle, registry);
  if (!made->rule) {
    made->rule = rule_of_element(short_name(made->name));
    made->for_each_element = static_cast<bool>(made->rule);
  }
  if (made->rule) {
    made->way = Operation::Way::rule;
    made->gradient = gradient_without_rule(made->name, registry);
    return made;
  }
  if (needs_memory(short_name(made->name))) {
    made->way = Operation::Way::refused;
    return made;
  }
  if (handle.hasTag(at::Tag::inplace_view)) {
    // For example, transpose_() is transpose.int() in place.
    made->way = Operation::Way::in_place_view;
    const std::string name(without_underscore(made->name));
    made->view = c10::Dispatcher::singleton().findSchema({name, handle.schema().overload_name()});
    if (!made->view)
      made->view = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "int");
    return made;
  }
  for (DispatchKey key :
       {DispatchKey::CompositeImplicitAutograd, DispatchKey::CompositeExplicitAutograd}) {
    if (!handle.hasKernelForDispatchKey(key)) continue;
    if (key == DispatchKey::CompositeExplicitAutograd && !is_made_of_others(short_name(made->name)))
      continue;
    made->way = Operation::Way::composite;
    made->composite = key;
    break;
  }
  return made;
}

const Operation& look_up(const OperatorHandle& handle) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  auto& found = all.operations[&handle.schema()];
  if (!found) found = make_operation(handle, all);
  return *found;
}

void add(std::string_view name, RuleFunction rule) {
  check(name.find("::") != std::string_view::npos,
        "register_rule: expected an operation such as 'aten::mm', found '{}'", name);
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  all.registered[std::string(name)] = std::move(rule);
  for (auto& [schema, operation] : all.operations)
    if (operation->name == name || operation->gradient == name)
      all.replaced.push_back(std::move(operation));
  std::erase_if(all.operations, [](const auto& entry) { return entry.second == nullptr; });
  version.fetch_add(1, std::memory_order_release);
}

}  // namespace

const Operation& operation_of(const OperatorHandle& handle) {
  struct Entry {
    const void* schema = nullptr;
    std::uint64_t version = 0;
    const Operation* operation = nullptr;
  };
  constexpr std::size_t size = 512;
  thread_local Entry entries[size];
  const void* schema = &handle.schema();
  std::uint64_t now = version.load(std::memory_order_acquire);
  Entry& entry = entries[(reinterpret_cast<std::uintptr_t>(schema) >> 4) % size];
  if (entry.schema != schema || entry.version != now) entry = {schema, now, &look_up(handle)};
  return *entry.operation;
}

std::string how_to_register(std::string_view name) {
  return formatted(
      "register one before its first use, such as lockstep::register_rule(\"{}\", \"... D -> ... "
      "D\") where it mixes elements of the last dim only",
      name);
}

}  // namespace lockstep::global

namespace lockstep {

void register_rule(std::string_view operation, std::string_view line) {
  global::add(operation, global::by_line(line));
}

void register_rule(std::string_view operation, RuleFunction rule) {
  check(static_cast<bool>(rule), "register_rule: the rule of {} is empty", operation);
  global::add(operation, std::move(rule));
}

int RuleCall::operand_of(int argument, int element) const {
  for (std::size_t i = 0; i < operands_.size(); ++i)
    if (operands_[i].argument == argument && operands_[i].element == element)
      return static_cast<int>(i);
  return -1;
}

}  // namespace lockstep
