#include "checkpoint/distributed_checkpoint.h"

#include "base/check.h"
#include "base/escaped.h"
#include "checkpoint/folders.h"
#include "checkpoint/torch_values.h"
#include "module/tensors.h"

#include <ATen/core/List.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

namespace lockstep::checkpoint {
namespace {

using layout::Box;

std::int64_t end_of(const Box& box, std::size_t dim) { return box.offsets[dim] + box.sizes[dim]; }

bool overlap(const Box& a, const Box& b) {
  for (std::size_t dim = 0; dim < a.offsets.size(); ++dim)
    if (a.offsets[dim] >= end_of(b, dim) || b.offsets[dim] >= end_of(a, dim)) return false;
  return true;
}

// Returns the dim along which boxes begin at the most places.
std::size_t sweep_dim(std::span<const Box> boxes, std::size_t dims) {
  std::size_t best = 0, most = 0;
  for (std::size_t dim = 0; dim < dims; ++dim) {
    std::set<std::int64_t> begins;
    for (const Box& box : boxes) begins.insert(box.offsets[dim]);
    if (begins.size() > most) {
      best = dim;
      most = begins.size();
    }
  }
  return best;
}

}  // namespace

std::size_t check_cover(const std::string& name, std::span<const std::int64_t> sizes,
                        std::span<const Box> boxes) {
  std::vector<std::size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t dim = sweep_dim(boxes, sizes.size());
  if (!sizes.empty())
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return boxes[i].offsets[dim]; });
  std::size_t compared = 0;
  std::vector<std::size_t> open;  // boxes that may overlap later ones
  for (const std::size_t i : order) {
    if (!sizes.empty())
      std::erase_if(open,
                    [&](std::size_t j) { return end_of(boxes[j], dim) <= boxes[i].offsets[dim]; });
    for (const std::size_t j : open) {
      ++compared;
      check_input(!overlap(boxes[i], boxes[j]), "parts {} and {} of '{}' overlap",
                  layout::describe(boxes[j]), layout::describe(boxes[i]), escaped(name));
    }
    open.push_back(i);
  }
  // No boxes overlap, so the sum cannot exceed the number of elements.
  std::int64_t covered = 0;
  for (const Box& box : boxes) covered += layout::numel_of(box);
  check_input(covered == layout::numel_of(sizes),
              "the number of elements in the parts of '{}' is {}, expected {}", escaped(name),
              covered, layout::numel_of(sizes));
  return compared;
}

namespace {

namespace fs = std::filesystem;
using Kind = Pickle::Kind;
using Ref = Pickle::Ref;
using layout::Box;

constexpr const char* metadata_name = ".metadata";
constexpr std::string_view root_class = "torch.distributed.checkpoint.metadata.Metadata",
                           tensor_class =
                               "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
                           bytes_class =
                               "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
                           chunk_class =
                               "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
                           properties_class =
                               "torch.distributed.checkpoint.metadata.TensorProperties",
                           memory_format =
                               "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
                           index_class = "torch.distributed.checkpoint.metadata.MetadataIndex",
                           storage_class = "torch.distributed.checkpoint.metadata.StorageMeta",
                           place_class = "torch.distributed.checkpoint.filesystem._StorageInfo";
constexpr std::size_t most_chunks = 4096;      // per tensor
constexpr std::size_t most_values = 64 << 20;  // of .metadata: about 30 per part of a tensor
constexpr std::size_t most_attributes = 64;

const std::vector<std::string_view>& metadata_globals() {
  static const std::vector<std::string_view> globals = [] {
    std::vector<std::string_view> names{"collections.OrderedDict",
                                        "builtins.getattr",  // of an enum, Python 3.11.0 to 3.11.3
                                        "torch.Size",
                                        "torch.serialization._get_layout",
                                        "pathlib.PosixPath",
                                        "pathlib.WindowsPath",
                                        "pathlib._local.PosixPath",
                                        "pathlib._local.WindowsPath",
                                        root_class,
                                        tensor_class,
                                        bytes_class,
                                        chunk_class,
                                        properties_class,
                                        memory_format,
                                        index_class,
                                        storage_class,
                                        place_class};
    for (const TorchDtype& row : torch_dtypes) names.push_back(row.name);
    return names;
  }();
  return globals;
}

// The attributes of a dataclass object.
class Attributes {
 public:
  Attributes(const Pickle& pickle, Ref object, std::string_view name)
      : pickle_(pickle), name_(name) {
    check_input(
        pickle.called(object) == name, "expected an object of {}, found {}", name,
        pickle.called(object).empty() ? name_of(pickle[object].kind) : pickle.called(object));
    state_ = pickle[object].state;
    check_input(state_ != Pickle::nothing && pickle[state_].kind == Kind::dict &&
                    pickle[state_].items.size() <= most_attributes,
                "expected the attributes of {}, found none or too many", name);
  }

  [[nodiscard]] std::optional<Ref> find(std::string_view attribute) const {
    const std::vector<Ref>& items = pickle_[state_].items;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2)
      if (pickle_[items[i]].kind == Kind::text && pickle_[items[i]].text == attribute)
        return items[i + 1];
    return std::nullopt;
  }
  [[nodiscard]] Ref at(std::string_view attribute, std::optional<Kind> kind = {}) const {
    const std::optional<Ref> found = find(attribute);
    check_input(found.has_value(), "{} has no {}", name_, attribute);
    check_input(!kind || pickle_[*found].kind == *kind, "{}.{}: expected {}, found {}", name_,
                attribute, name_of(kind.value_or(Kind::none)), name_of(pickle_[*found].kind));
    return *found;
  }
  [[nodiscard]] std::string text(std::string_view attribute) const {
    return std::string(pickle_[at(attribute, Kind::text)].text);
  }
  [[nodiscard]] std::uint64_t count(std::string_view attribute) const {
    const std::int64_t value = pickle_[at(attribute, Kind::integer)].integer;
    check_input(value >= 0, "{}.{}: expected at least 0, found {}", name_, attribute, value);
    return static_cast<std::uint64_t>(value);
  }
  [[nodiscard]] std::vector<std::int64_t> sizes(std::string_view attribute) const {
    std::vector<std::int64_t> found = numbers_of(pickle_, at(attribute));
    for (const std::int64_t size : found)
      check_input(size >= 0, "{}.{}: expected at least 0, found {}", name_, attribute, size);
    return found;
  }

 private:
  const Pickle& pickle_;
  const std::string_view name_;
  Ref state_ = Pickle::nothing;
};

// Returns the dtype, the first item of the state of TensorProperties.
at::ScalarType dtype_in(const Pickle& pickle, Ref properties) {
  const Ref state = pickle[properties].state;
  const bool is_known = pickle.called(properties) == properties_class && state != Pickle::nothing &&
                        pickle[state].kind == Kind::tuple && !pickle[state].items.empty();
  const TorchDtype* dtype =
      is_known ? find_torch_dtype(pickle.global(pickle[state].items[0])) : nullptr;
  check_input(dtype != nullptr,
              "expected a tensor's properties with a dtype, found properties without one");
  return dtype->dtype;
}

std::string shown_part(const std::string& name, const std::vector<std::int64_t>& offsets) {
  return formatted("'{}' at [{}]", escaped(name), listed(offsets, ", "));
}

DistributedFolder::Entry tensor_entry(const Pickle& pickle, const std::string& name, Ref object) {
  const Attributes tensor(pickle, object, tensor_class);
  DistributedFolder::Entry entry{.is_tensor = true,
                                 .dtype = dtype_in(pickle, tensor.at("properties")),
                                 .sizes = tensor.sizes("size"),
                                 .chunks = {},
                                 .empty = {},
                                 .place = {},
                                 .path = {}};
  (void)checked_bytes(entry.sizes, entry.dtype);
  const std::vector<Ref>& chunks = pickle[tensor.at("chunks", Kind::list)].items;
  std::vector<Box> boxes;
  check_input(chunks.size() <= most_chunks, "'{}': expected at most {} parts, found {}",
              escaped(name), most_chunks, chunks.size());
  for (const Ref chunk : chunks) {
    const Attributes box(pickle, chunk, chunk_class);
    const Box found{box.sizes("offsets"), box.sizes("sizes")};
    check_input(
        found.offsets.size() == entry.sizes.size() && found.sizes.size() == entry.sizes.size(),
        "'{}': expected parts with as many dims as the tensor, {}", escaped(name),
        entry.sizes.size());
    for (std::size_t dim = 0; dim < found.sizes.size(); ++dim)
      check_input(found.offsets[dim] <= entry.sizes[dim] &&
                      found.sizes[dim] <= entry.sizes[dim] - found.offsets[dim],
                  "a part of '{}' does not fit into sizes [{}]", escaped(name),
                  listed(entry.sizes, ", "));
    if (found.empty())
      entry.empty.insert(found.offsets);
    else
      boxes.push_back(found);
  }
  check_cover(name, entry.sizes, boxes);
  for (Box& box : boxes) entry.chunks.push_back({std::move(box), {}});
  return entry;
}

// Returns a plain file name in the folder.
std::string file_name_in(const Attributes& info) {
  std::string name = info.text("relative_path");
  check_input(!name.empty() && name.find('/') == std::string::npos &&
                  name.find('\0') == std::string::npos && name != "." && name != "..",
              "expected a file in this folder, found '{}'", escaped(name));
  return name;
}

}  // namespace

DistributedFolder::DistributedFolder(fs::path folder, TorchReading how)
    : folder_(std::move(folder)), how_(how) {
  const fs::path path = folder_ / metadata_name;
  std::string text = sys::read_plain_file(path, Pickle::most_bytes);
  in_file(path, [&] {
    const Pickle pickle(std::move(text), metadata_globals(), most_values);
    read_tensors(pickle, pickle.root());
    read_places(pickle, pickle.root());
    read_paths(pickle, pickle.root());
    check_complete();
  });
}

void DistributedFolder::read_tensors(const Pickle& pickle, Ref metadata) {
  const Attributes root(pickle, metadata, root_class);
  const std::vector<Ref>& items = pickle[root.at("state_dict_metadata", Kind::dict)].items;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    check_input(pickle[items[i]].kind == Kind::text, "expected names of entries, found {}",
                name_of(pickle[items[i]].kind));
    const std::string name(pickle[items[i]].text);
    const bool is_bytes = pickle.called(items[i + 1]) == bytes_class;
    Entry entry = is_bytes ? Entry{} : tensor_entry(pickle, name, items[i + 1]);
    check_input(entries_.emplace(name, std::move(entry)).second,
                "expected different names, found two entries named '{}'", escaped(name));
  }
}

void DistributedFolder::read_places(const Pickle& pickle, Ref metadata) {
  const Attributes root(pickle, metadata, root_class);
  const std::vector<Ref>& items = pickle[root.at("storage_data", Kind::dict)].items;
  std::map<std::pair<std::string, std::vector<std::int64_t>>, StoredRange*> wanted;
  for (auto& [name, entry] : entries_) {
    if (!entry.is_tensor) wanted[{name, {}}] = &entry.place;
    for (Chunk& chunk : entry.chunks) wanted[{name, chunk.box.offsets}] = &chunk.place;
  }
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const Attributes index(pickle, items[i], index_class);
    const Attributes info(pickle, items[i + 1], place_class);
    const std::string name = index.text("fqn");
    const std::optional<Ref> offset = index.find("offset");  // present for tensors
    std::vector<std::int64_t> offsets;
    if (offset && pickle[*offset].kind != Kind::none) offsets = numbers_of(pickle, *offset);
    const auto found = wanted.find({name, offsets});
    const auto entry = entries_.find(name);
    if (entry != entries_.end() && entry->second.empty.contains(offsets) &&
        (found == wanted.end() || !found->second->file.empty()))
      continue;
    check_input(found != wanted.end() && found->second->file.empty(),
                "expected one place for each entry, found an unknown or a second one for {}",
                shown_part(name, offsets));
    if (const auto extensions = info.find("transform_descriptors"))
      check_input(
          pickle[*extensions].kind == Kind::none || pickle[*extensions].items.empty(),
          "{} was saved with an extension of PyTorch, such as compression, which is not supported",
          shown_part(name, offsets));
    *found->second = {file_name_in(info), {info.count("offset"), info.count("length")}};
  }
}

// Reads planner_data of PyTorch's planner; without it, only the names are known.
void DistributedFolder::read_paths(const Pickle& pickle, Ref metadata) {
  const Attributes root(pickle, metadata, root_class);
  const std::optional<Ref> paths = root.find("planner_data");
  if (paths && pickle[*paths].kind == Kind::dict) {
    const std::vector<Ref>& items = pickle[*paths].items;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const auto entry = entries_.find(std::string(pickle[items[i]].text));
      check_input(entry != entries_.end() && entry->second.path.empty() &&
                      pickle[items[i + 1]].kind == Kind::tuple &&
                      !pickle[items[i + 1]].items.empty(),
                  "expected one path for each entry, found another list of paths");
      in_order_.push_back(&*entry);
      for (const Ref key : pickle[items[i + 1]].items) {
        const Pickle::Node& node = pickle[key];
        check_input(node.kind == Kind::text || node.kind == Kind::integer,
                    "'{}': expected a path of strings and integers, found {}",
                    escaped(entry->first), name_of(node.kind));
        entry->second.path.push_back(node.kind == Kind::text ? c10::IValue(std::string(node.text))
                                                             : c10::IValue(node.integer));
      }
    }
  }
  for (auto& item : entries_) {
    if (!item.second.path.empty()) continue;
    item.second.path.emplace_back(item.first);
    in_order_.push_back(&item);
  }
}

void DistributedFolder::check_complete() const {
  for (const auto& [name, entry] : entries_) {
    check_input(entry.is_tensor || !entry.place.file.empty(), "no file has '{}'", escaped(name));
    for (const Chunk& chunk : entry.chunks)
      check_input(!chunk.place.file.empty(), "no file has {}", shown_part(name, chunk.box.offsets));
  }
}

c10::IValue DistributedFolder::read(const StoredRange& place) const {
  std::shared_ptr<const TorchSource>& file = files_[place.file];
  const fs::path path = folder_ / place.file;
  if (file == nullptr) file = std::make_shared<const TorchSource>(path, how_);
  try {
    const std::uint64_t size = file->file.size();
    check_input(place.range.begin <= size && place.range.bytes <= size - place.range.begin,
                "expected {} bytes at byte {}, the file has {}", place.range.bytes,
                place.range.begin, size);
    return read_archive(file, place.range);
  } catch (const BadInput& problem) {
    throw BadInput(
        formatted("{}: at byte {}: {}", path.string(), place.range.begin, problem.what()));
  }
}

at::Tensor DistributedFolder::part(const Entry& entry, const Chunk& chunk) const {
  const c10::IValue value = read(chunk.place);
  const std::string shown =
      formatted("{}: at byte {}", (folder_ / chunk.place.file).string(), chunk.place.range.begin);
  check_input(value.isTensor(), "{}: expected a tensor, found a value of type {}", shown,
              value.tagKind());
  at::Tensor part = value.toTensor();
  check_input(part.sizes() == at::IntArrayRef(chunk.box.sizes) && part.scalar_type() == entry.dtype,
              "{}: expected a tensor of {} [{}], found {} [{}]", shown, c10::toString(entry.dtype),
              listed(chunk.box.sizes, ", "), c10::toString(part.scalar_type()),
              listed(part.sizes(), ", "));
  return part;
}

at::Tensor DistributedFolder::tensor(const Entry& entry) const {
  if (entry.chunks.size() == 1) return part(entry, entry.chunks[0]);
  at::Tensor whole = at::empty(entry.sizes, at::TensorOptions(entry.dtype));
  for (const Chunk& chunk : entry.chunks)
    modules::box_in_whole(whole, chunk.box).copy_(part(entry, chunk));
  return whole;
}

c10::IValue DistributedFolder::value(const Entry& entry) const {
  return entry.is_tensor ? c10::IValue(tensor(entry)) : read(entry.place);
}

namespace {

// Converts the dicts of the entries' paths. Their leaves are indices in `values`; a dict whose keys
// are 0, 1, 2, ... becomes a list. Saved values stay as they are: they may have such dicts, too.
c10::IValue with_lists(const c10::IValue& node, const std::vector<c10::IValue>& values) {
  if (node.isInt()) return values[static_cast<std::size_t>(node.toInt())];
  const Dict from = node.toGenericDict();
  Dict all = empty_dict();
  c10::impl::GenericList list(c10::AnyType::get());
  bool is_list = from.size() > 0;
  for (const auto& item : from) {
    all.insert(item.key(), with_lists(item.value(), values));
    is_list = is_list && item.key().isInt();
  }
  for (std::int64_t i = 0; is_list && i < static_cast<std::int64_t>(all.size()); ++i) {
    const auto found = all.find(i);
    is_list = found != all.end();
    if (is_list) list.push_back(found->value());
  }
  return is_list ? c10::IValue(list) : c10::IValue(all);
}

}  // namespace

c10::IValue read_distributed_checkpoint(const fs::path& folder, TorchReading how) {
  const DistributedFolder from(folder, how);
  Dict all = empty_dict();
  std::vector<c10::IValue> values;
  for (const auto* item : from.in_order()) {
    const auto& [name, entry] = *item;
    check_input(entry.path.size() <= 32, "{}: '{}' nests deeper than 32", folder.string(),
                escaped(name));
    Dict place = all;
    for (std::size_t i = 0; i + 1 < entry.path.size(); ++i) {
      const auto found = place.find(entry.path[i]);
      if (found == place.end()) {
        const Dict next = empty_dict();
        place.insert(entry.path[i], next);
        place = next;
      } else {
        check_input(found->value().isGenericDict(), "{}: '{}' lies within another entry",
                    folder.string(), escaped(name));
        place = found->value().toGenericDict();
      }
    }
    const bool is_new =
        place.insert(entry.path.back(), static_cast<std::int64_t>(values.size())).second;
    check_input(is_new, "{}: '{}' has the path of another entry", folder.string(), escaped(name));
    values.push_back(from.value(entry));
  }
  return with_lists(all, values);
}

}  // namespace lockstep::checkpoint
