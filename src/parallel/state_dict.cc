#include "parallel/state_dict.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/format.h"
#include "dispatch/lazy_storage.h"
#include "module/checks.h"
#include "module/tensors.h"
#include "parallel/word_list.h"

#include <lockstep/base/error.h>
#include <lockstep/dispatch/deferred_init.h>
#include <lockstep/dispatch/part.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

namespace lockstep::parallel {

// Parts of tensor parallelism are also in such storages, but stay valid.
void check_not_sharded(const std::vector<NamedParameter>& parameters, std::string_view strategy) {
  for (const auto& [name, tensor, aliases] : parameters) {
    const bool is_part = dispatch::part_of(tensor) != nullptr && dispatch::has_memory(tensor);
    check(!dispatch::is_lazy(tensor) || dispatch::is_deferred(tensor) || is_part,
          "{}: {} is divided by fully_shard(), whose handle trains it", strategy, name);
  }
}

std::vector<Part> whole_parts(const std::vector<NamedParameter>& parameters) {
  std::vector<Part> list;
  for (const auto& [name, tensor, aliases] : parameters)
    list.push_back({.name = name,
                    .tensor = tensor,
                    .aliases = aliases,
                    .slice = layout::whole_slice(tensor.sizes()),
                    .shard_group = dispatch::shard_group_of(tensor)});
  return list;
}

PartKinds::PartKinds(const torch::nn::Module& module, std::span<const std::string> ignored) {
  modules::ModuleTensors tensors = modules::tensors_of(module, ignored);
  for (const auto& buffer : tensors.buffers)
    kinds_.emplace(buffer.tensor.unsafeGetTensorImpl(), PartKind::buffer);
  for (const at::Tensor& tensor : tensors.ignored)
    kinds_.emplace(tensor.unsafeGetTensorImpl(), PartKind::ignored);
}

Part PartKinds::whole_part(const NamedParameter& entry) const {
  auto found = kinds_.find(entry.tensor.unsafeGetTensorImpl());
  return {entry.name, entry.tensor.detach(), entry.aliases,
          layout::whole_slice(entry.tensor.sizes()),
          found == kinds_.end() ? PartKind::parameter : found->second};
}

std::vector<std::string> names_of(const Part& part) {
  std::vector<std::string> names{part.name};
  names.insert(names.end(), part.aliases.begin(), part.aliases.end());
  return names;
}

std::vector<Part> whole_state_parts(const torch::nn::Module& module,
                                    std::span<const std::string> ignored) {
  const PartKinds kinds(module, ignored);
  std::vector<Part> list;
  for (const NamedParameter& entry : modules::state_entries(module))
    if (!entry.tensor.is_nested()) list.push_back(kinds.whole_part(entry));
  return list;
}

namespace {

std::vector<std::int64_t> encoded(std::span<const Part> parts) {
  Encoder encoder;
  encoder.number(static_cast<std::int64_t>(parts.size()));
  for (const Part& part : parts) {
    encoder.text(part.name);
    encoder.number(static_cast<std::int64_t>(part.tensor.scalar_type()));
    encoder.number(static_cast<std::int64_t>(part.tensor.device().type()));
    encoder.numbers(part.slice.sizes);
    encoder.numbers(part.slice.box.offsets);
    encoder.numbers(part.slice.box.sizes);
    encoder.number(part.slice.range.begin);
    encoder.number(part.slice.range.end);
    encoder.numbers(part.slice.dim_order);
    encoder.number(static_cast<std::int64_t>(part.kind));
    encoder.number(static_cast<std::int64_t>(part.aliases.size()));
    for (const std::string& alias : part.aliases) encoder.text(alias);
  }
  return encoder.take();
}

// Throws Mismatch unless the numbers of a slice fit together; InvalidArgument if the tensor has too
// many elements to count.
void check_slice(const layout::TensorSlice& slice) {
  const std::size_t dims = slice.sizes.size();
  std::vector<int> order = slice.dim_order;
  std::ranges::sort(order);
  bool fits = slice.box.offsets.size() == dims && slice.box.sizes.size() == dims &&
              (order.empty() || order.size() == dims) && slice.range.begin <= slice.range.end;
  for (std::size_t i = 0; fits && i < order.size(); ++i) fits = order[i] == static_cast<int>(i);
  for (std::size_t i = 0; fits && i < dims; ++i)
    fits = slice.box.offsets[i] <= slice.sizes[i] &&
           slice.box.sizes[i] <= slice.sizes[i] - slice.box.offsets[i];
  if (fits) (void)layout::numel_of(slice.sizes);
  fits = fits && slice.range.end <= layout::numel_of(slice.box);
  if (!fits) throw Mismatch("exchange of parts: the slice of another rank does not fit its tensor");
}

std::vector<Part> decoded(std::span<const std::int64_t> words) {
  Decoder decoder(words);
  std::vector<Part> parts(decoder.count());
  // One tensor for all parts of a dtype and kind of device, because there may be many parts.
  std::map<std::pair<c10::ScalarType, c10::DeviceType>, at::Tensor> tensors;
  for (Part& part : parts) {
    part.name = decoder.text();
    const auto dtype = static_cast<c10::ScalarType>(
        decoder.number(static_cast<std::int64_t>(c10::ScalarType::NumOptions) - 1));
    const auto device =
        static_cast<c10::DeviceType>(decoder.number(c10::COMPILE_TIME_MAX_DEVICE_TYPES - 1));
    at::Tensor& tensor = tensors[{dtype, device}];
    if (!tensor.defined()) tensor = no_elements(dtype, device);
    part.tensor = tensor;
    part.slice.sizes = decoder.numbers<std::int64_t>();
    part.slice.box.offsets = decoder.numbers<std::int64_t>();
    part.slice.box.sizes = decoder.numbers<std::int64_t>();
    part.slice.range.begin = decoder.number();
    part.slice.range.end = decoder.number();
    part.slice.dim_order = decoder.numbers<int>();
    check_slice(part.slice);
    part.kind = static_cast<PartKind>(decoder.number(static_cast<std::int64_t>(PartKind::ignored)));
    part.aliases.resize(decoder.count());
    for (std::string& alias : part.aliases) alias = decoder.text();
  }
  return parts;
}

}  // namespace

at::Tensor no_elements(c10::ScalarType dtype, c10::DeviceType device) {
  return at::empty({0}, at::TensorOptions(dtype).device(device));
}

constexpr std::int64_t most_words = std::int64_t{1} << 34;

std::vector<std::vector<Part>> exchange_parts(Group& group, std::span<const Part> own) {
  std::vector<std::int64_t> words = encoded(own);
  const auto lengths =
      modules::numbers_of_all(group, {std::ssize(words)}, {.tag = "exchange of parts"});
  for (const std::int64_t count : lengths)
    if (count < 1 || count > most_words / group.size())
      throw Mismatch(formatted("exchange of parts: expected 1 to {} words from a rank, found {}",
                               most_words / group.size(), count));
  std::vector<std::int64_t> all(
      static_cast<std::size_t>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})));
  group
      .all_gather(at::from_blob(all.data(), {std::ssize(all)}, at::kLong),
                  at::from_blob(words.data(), {std::ssize(words)}, at::kLong), lengths,
                  {.tag = "exchange of parts"})
      .wait();
  std::vector<std::vector<Part>> by_rank;
  std::span<const std::int64_t> left(all);
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto told = left.first(static_cast<std::size_t>(lengths[static_cast<std::size_t>(rank)]));
    if (rank == group.rank() && !std::ranges::equal(told, words))
      throw Mismatch("exchange of parts: expected what this rank told, found something else");
    by_rank.push_back(decoded(told));
    left = left.subspan(told.size());
  }
  return by_rank;
}

std::set<std::string> names_of_all(Group& group, const std::set<std::string>& own) {
  std::vector<Part> list;
  for (const std::string& name : own)
    list.push_back({.name = name, .tensor = no_elements(at::kByte)});
  std::set<std::string> all;
  for (const auto& of_rank : exchange_parts(group, list))
    for (const Part& part : of_rank) all.insert(part.name);
  return all;
}

namespace {

constexpr std::int64_t bytes_at_once = std::int64_t{25} << 20;
constexpr CallOptions state_call{.tag = "state dict"};

// A tensor of the whole model.
struct Whole {
  // Some elements of the whole tensor, taken from the lowest rank that has them.
  struct Piece {
    int rank = 0;
    layout::TensorSlice slice;

    [[nodiscard]] std::int64_t bytes(at::ScalarType dtype) const {
      // The pieces of one round lie side by side, and each must be aligned for its dtype.
      const std::int64_t own = slice.numel() * static_cast<std::int64_t>(c10::elementSize(dtype));
      return (own + 15) / 16 * 16;
    }
  };

  std::vector<std::string> names = {};  // over all ranks
  std::vector<std::int64_t> sizes;
  at::ScalarType dtype{};
  c10::DeviceType device{};
  std::vector<Piece> pieces = {};
  int ranks_with_all = 0;
  std::vector<Part> own = {};  // parts of this rank
};

bool has_all(const Part& part) {
  return part.slice.is_whole() && part.tensor.sizes() == at::IntArrayRef(part.slice.sizes);
}

// All tensors of the model, in the order in which the ranks name them.
class WholeModel {
 public:
  // Collective unless `state` holds whole tensors.
  explicit WholeModel(HandleState& state) : group_(state.group()) {
    std::vector<Part> parts = state.state_parts();
    is_local_ = state.holds_wholes() || group_.size() == 1;
    // Values that belong to no whole tensor are not sent to other ranks.
    std::vector<Part> shared = parts;
    std::erase_if(shared, [](const Part& part) { return part.kind == PartKind::ignored; });
    if (is_local_) {
      for (const Part& one : shared) add(one, group_.rank());
    } else {
      const auto all = exchange_parts(group_, shared);
      for (std::size_t rank = 0; rank < all.size(); ++rank)
        for (const Part& one : all[rank]) add(one, static_cast<int>(rank));
    }
    for (Part& part : parts) take_own(std::move(part));
    if (!is_local_) check_complete();
  }

  [[nodiscard]] std::vector<Whole>& tensors() { return tensors_; }
  [[nodiscard]] bool has_name(const std::string& name) const { return places_.contains(name); }
  [[nodiscard]] const Whole& at(const std::string& name) const {
    return tensors_[places_.at(name)];
  }
  // Returns true if all ranks have the same elements of `one`.
  [[nodiscard]] bool is_everywhere(const Whole& one) const {
    return is_local_ || one.ranks_with_all == group_.size();
  }
  [[nodiscard]] Group& group() { return group_; }

 private:
  // Returns the whole tensor of the part; adds a new one if no earlier part has any of its names.
  Whole& whole_of(const Part& part) {
    const std::vector<std::string> names = names_of(part);
    const auto known = std::ranges::find_if(
        names, [this](const std::string& name) { return places_.contains(name); });
    const std::size_t place = known == names.end() ? tensors_.size() : places_.at(*known);
    if (place == tensors_.size())
      tensors_.push_back({.sizes = part.slice.sizes,
                          .dtype = part.tensor.scalar_type(),
                          .device = part.tensor.device().type()});
    Whole& one = tensors_[place];
    for (const std::string& name : names)
      if (places_.emplace(name, place).second) one.names.push_back(name);
    return one;
  }

  void add(const Part& part, int rank) {
    Whole& one = whole_of(part);
    const at::ScalarType dtype = part.tensor.scalar_type();
    check(one.sizes == part.slice.sizes && one.dtype == dtype,
          "state dict: {}: expected a tensor of {} [{}], as a lower rank has it, found {} [{}] on "
          "rank {}",
          escaped(part.name), c10::toString(one.dtype), listed(one.sizes, ", "),
          c10::toString(dtype), listed(part.slice.sizes, ", "), rank);
    if (part.slice.is_whole()) ++one.ranks_with_all;
    const bool is_known =
        std::ranges::find(one.pieces, part.slice, &Whole::Piece::slice) != one.pieces.end();
    if (!is_known) one.pieces.push_back({rank, part.slice});
  }

  void take_own(Part part) {
    Whole& one = whole_of(part);
    if (part.kind == PartKind::ignored) one.ranks_with_all = group_.size();
    one.own.push_back(std::move(part));
  }

  void check_complete() const {
    for (const Whole& one : tensors_) {
      if (one.ranks_with_all > 0) continue;
      const std::int64_t found = std::accumulate(
          one.pieces.begin(), one.pieces.end(), std::int64_t{0},
          [](std::int64_t sum, const Whole::Piece& piece) { return sum + piece.slice.numel(); });
      check(found >= layout::numel_of(one.sizes),
            "state dict: {}: expected {} elements on the ranks of the handle, found {}",
            escaped(one.names.front()), layout::numel_of(one.sizes), found);
    }
  }

  Group group_;
  bool is_local_ = false;
  std::vector<Whole> tensors_;
  std::map<std::string, std::size_t> places_;  // in it
};

// Has the memory layout of the ranks' parts.
at::Tensor empty_whole(const Whole& one) {
  const at::TensorOptions options = at::TensorOptions(one.dtype).device(one.device);
  const std::vector<int>& order = one.pieces.front().slice.dim_order;
  if (order.empty()) return at::empty(one.sizes, options);
  std::vector<std::int64_t> outermost_first, back(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    outermost_first.push_back(one.sizes[static_cast<std::size_t>(order[i])]);
    back[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  }
  return at::empty(outermost_first, options).permute(back);
}

at::Tensor box_of_part(const Part& part, const layout::Box& box) {
  return has_all(part) ? modules::box_in_whole(part.tensor, box)
                       : modules::box_in_part(part.tensor, part.slice, box);
}

// Returns a whole tensor with a copy of this rank's elements; elements of other ranks are not set
// yet.
at::Tensor copied(const Whole& one) {
  for (const Part& part : one.own)
    if (has_all(part)) return part.tensor.clone();
  at::Tensor whole = empty_whole(one);
  for (const Part& part : one.own)
    for (const layout::Box& box : layout::boxes_of(part.slice))
      modules::box_in_whole(whole, box).copy_(box_of_part(part, box));
  return whole;
}

// Pieces that travel in one all_gather.
class Round {
 public:
  Round(Group& group, std::map<std::string, at::Tensor>& all)
      : group_(group), all_(all), bytes_of_rank_(static_cast<std::size_t>(group.size())) {}

  void add(const Whole& one) {
    for (const Whole::Piece& piece : one.pieces) {
      if (piece.slice.numel() == 0) continue;
      if (!pieces_.empty() && (bytes_ >= bytes_at_once || device_ != one.device)) gather();
      device_ = one.device;
      pieces_.emplace_back(&one, &piece);
      bytes_of_rank_[static_cast<std::size_t>(piece.rank)] += piece.bytes(one.dtype);
      bytes_ += piece.bytes(one.dtype);
    }
  }

  void gather() {
    if (pieces_.empty()) return;
    const at::TensorOptions bytes = at::TensorOptions(at::kByte).device(device_);
    const at::Tensor to = at::empty({bytes_}, bytes);
    group_.all_gather(to, own_bytes(bytes), bytes_of_rank_, state_call).wait();
    std::vector<std::int64_t> next(bytes_of_rank_.size());
    std::exclusive_scan(bytes_of_rank_.begin(), bytes_of_rank_.end(), next.begin(),
                        std::int64_t{0});
    for (const auto& [one, piece] : pieces_) {
      std::int64_t& offset = next[static_cast<std::size_t>(piece->rank)];
      if (piece->rank != group_.rank())
        paste_part(values_at(to, offset, *one, *piece),
                   {.name = one->names.front(), .slice = piece->slice},
                   all_.at(one->names.front()));
      offset += piece->bytes(one->dtype);
    }
    pieces_.clear();
    std::ranges::fill(bytes_of_rank_, 0);
    bytes_ = 0;
  }

 private:
  // Returns this rank's bytes, in the order in which other ranks read them.
  [[nodiscard]] at::Tensor own_bytes(const at::TensorOptions& options) const {
    at::Tensor from = at::zeros({bytes_of_rank_[static_cast<std::size_t>(group_.rank())]}, options);
    std::int64_t offset = 0;
    for (const auto& [one, piece] : pieces_) {
      if (piece->rank != group_.rank()) continue;
      const auto part = std::ranges::find(one->own, piece->slice, &Part::slice);
      values_at(from, offset, *one, *piece).copy_(part->tensor.reshape({-1}));
      offset += piece->bytes(one->dtype);
    }
    return from;
  }

  static at::Tensor values_at(const at::Tensor& bytes, std::int64_t offset, const Whole& one,
                              const Whole::Piece& piece) {
    return bytes.narrow(0, offset, piece.bytes(one.dtype))
        .view(one.dtype)
        .narrow(0, 0, piece.slice.numel());
  }

  Group& group_;
  std::map<std::string, at::Tensor>& all_;  // by first names
  std::vector<std::pair<const Whole*, const Whole::Piece*>> pieces_;
  std::vector<std::int64_t> bytes_of_rank_;
  std::int64_t bytes_ = 0;
  c10::DeviceType device_ = c10::kCPU;
};

}  // namespace

std::map<std::string, at::Tensor> get_model_state_dict(HandleState& state) {
  at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> all;
  if (state.holds_wholes()) {
    for (const Part& part : state.state_parts())
      for (const std::string& name : names_of(part)) all[name] = part.tensor;
    return all;
  }
  WholeModel model(state);
  for (const Whole& one : model.tensors()) all[one.names.front()] = copied(one);
  Round round(model.group(), all);
  for (const Whole& one : model.tensors())
    if (!model.is_everywhere(one)) round.add(one);
  round.gather();
  for (const Whole& one : model.tensors())
    for (const std::string& name : one.names) all[name] = all.at(one.names.front());
  return all;
}

void set_model_state_dict(const std::shared_ptr<HandleState>& state,
                          const std::map<std::string, at::Tensor>& tensors) {
  at::NoGradGuard no_grad;
  WholeModel model(*state);
  std::map<std::string, at::Tensor> values;
  for (const Whole& one : model.tensors())
    values[one.names.front()] = modules::values_for(one.names, one.sizes, tensors);
  for (const auto& [name, tensor] : tensors)
    check_input(model.has_name(name),
                "loading a model: found a tensor named {} that the model does not have",
                escaped(name));
  for (const Part& part : LoadScope(state)) {
    const at::Tensor& whole = values.at(model.at(part.name).names.front());
    if (has_all(part)) {
      part.tensor.copy_(whole);
      continue;
    }
    for (const layout::Box& box : layout::boxes_of(part.slice))
      box_of_part(part, box).copy_(modules::box_in_whole(whole, box));
  }
}

}  // namespace lockstep::parallel
