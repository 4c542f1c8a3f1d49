#include <lockstep/checkpoint/torch_file.h>

#include "base/check.h"
#include "base/escaped.h"
#include "checkpoint/folders.h"
#include "checkpoint/pickle.h"
#include "checkpoint/torch_archive.h"
#include "checkpoint/torch_values.h"
#include "sys/files.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <caffe2/serialize/inline_container.h>

#include <bit>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <utility>

namespace lockstep::checkpoint {
namespace {

// Writes protocol 2, like torch.save(), without a memo.
class Pickler {
 public:
  PickledValue take(const c10::IValue& value) {
    text_ = "\x80\x02";
    write(value, 0);
    text_ += '.';
    return {std::move(text_), std::move(storages_)};
  }

 private:
  template <class T>
  void number(char code, T value) {
    text_ += code;
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  void integer(std::int64_t value) {
    if (value >= 0 && value < 256) {
      number('K', static_cast<std::uint8_t>(value));
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      number('J', static_cast<std::int32_t>(value));
    } else {
      text_ += "\x8a\x08";
      text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
  }

  void text(std::string_view value) {
    check(is_utf8(value), "write_torch_file: strings must be UTF-8, found '{}'", escaped(value));
    check(value.size() <= UINT32_MAX, "write_torch_file: a string of {} bytes is too long",
          value.size());
    number('X', static_cast<std::uint32_t>(value.size()));
    text_ += value;
  }

  // "torch.FloatStorage": the last dot ends the module's name.
  void global(std::string_view name) {
    const std::size_t point = name.rfind('.');
    text_ += formatted("c{}\n{}\n", name.substr(0, point), name.substr(point + 1));
  }

  void numbers(at::IntArrayRef values) {
    text_ += '(';
    for (const std::int64_t value : values) integer(value);
    text_ += 't';
  }

  void write(const c10::IValue& value, int depth) {
    check(depth <= 100, "write_torch_file: values nest deeper than 100");
    check(text_.size() <= Pickle::most_bytes,
          "write_torch_file: expected values that need at most {} bytes besides those of tensors, "
          "found more",
          Pickle::most_bytes);
    if (value.isNone()) {
      text_ += 'N';
    } else if (value.isBool()) {
      text_ += value.toBool() ? '\x88' : '\x89';
    } else if (value.isInt()) {
      integer(value.toInt());
    } else if (value.isDouble()) {
      number('G', __builtin_bswap64(std::bit_cast<std::uint64_t>(value.toDouble())));
    } else if (value.isString()) {
      text(value.toStringRef());
    } else if (value.isTensor()) {
      tensor(value.toTensor());
    } else if (value.isTuple()) {
      sequence("(", value.toTupleRef().elements().asArrayRef(), "t", depth);
    } else if (value.isList()) {
      sequence("](", value.toListRef(), "e", depth);
    } else {
      check(value.isGenericDict(),
            "write_torch_file: expected dicts, lists, tuples, tensors, numbers and strings, found "
            "a value of type {}",
            value.tagKind());
      dict(value, depth);
    }
  }

  void sequence(const char* begin, c10::ArrayRef<c10::IValue> items, const char* end, int depth) {
    text_ += begin;
    for (const c10::IValue& item : items) write(item, depth + 1);
    text_ += end;
  }

  void dict(const c10::IValue& value, int depth) {
    text_ += "}(";
    for (const auto& item : value.toGenericDict()) {
      check(item.key().isString() || item.key().isInt(),
            "write_torch_file: expected keys that are strings or integers, found {}",
            item.key().tagKind());
      write(item.key(), depth + 1);
      write(item.value(), depth + 1);
    }
    text_ += 'u';
  }

  void tensor(const at::Tensor& given) {
    check(given.defined() && given.layout() == at::kStrided && !given.is_meta(),
          "write_torch_file: expected tensors with values, found one {}",
          !given.defined()  ? "that is undefined"
          : given.is_meta() ? "on the meta device"
                            : "that is not strided");
    const at::Tensor tensor = given._is_zerotensor() ? at::zeros(given.sizes(), given.scalar_type())
                                                     : given.detach().resolve_conj().resolve_neg();
    const TorchDtype* dtype = find_torch_dtype(tensor.scalar_type());
    check(dtype != nullptr, "write_torch_file: dtype {} is not supported",
          c10::toString(tensor.scalar_type()));
    const std::size_t key = storage_of(tensor);
    const bool has_type = !dtype->storage.empty();
    const auto bytes = static_cast<std::int64_t>(storages_[key].nbytes());
    global(has_type ? "torch._utils._rebuild_tensor_v2" : "torch._utils._rebuild_tensor_v3");
    text_ += "((";
    text("storage");
    global(has_type ? dtype->storage : untyped_storage);
    text(formatted("{}", key));
    text("cpu");
    integer(has_type ? bytes / static_cast<std::int64_t>(tensor.element_size()) : bytes);
    text_ += "tQ";
    integer(tensor.storage_offset());
    numbers(tensor.sizes());
    numbers(tensor.strides());
    text_ += '\x89';  // requires no gradient
    global("collections.OrderedDict");
    text_ += ")R";
    if (!has_type) global(dtype->name);
    text_ += "tR";
  }

  // Python keeps the type under which it first meets a storage, so a storage with two dtypes
  // becomes two.
  std::size_t storage_of(const at::Tensor& tensor) {
    const at::Storage& storage = tensor.storage();
    const auto [place, is_new] = keys_.emplace(
        std::pair(storage.unsafeGetStorageImpl(), tensor.scalar_type()), storages_.size());
    if (!is_new) return place->second;
    const auto size =
        static_cast<std::int64_t>(storage.nbytes() / tensor.element_size() * tensor.element_size());
    check(size == 0 || storage.data() != nullptr,
          "write_torch_file: a tensor has no values on this rank: for a sharded model, write the "
          "handle's state_dict()");
    const at::Tensor bytes =
        at::empty({0}, tensor.options().dtype(at::kByte)).set_(storage, 0, {size}, {1});
    kept_.push_back(tensor);  // keeps its address from being reused
    storages_.push_back(bytes.cpu());
    return place->second;
  }

  std::string text_;
  std::vector<at::Tensor> storages_, kept_;
  std::map<std::pair<const void*, at::ScalarType>, std::size_t> keys_;
};

}  // namespace

PickledValue pickled(const c10::IValue& value) { return Pickler().take(value); }

namespace {

constexpr int deepest_name = 100;
constexpr std::size_t most_flattened = 4 << 20;
constexpr std::size_t most_name_bytes = 1 << 30;  // a shared dict has a name for each place

// Wraps LibTorch's writer, which cannot write atomically or handle disk errors: it is always told
// that writing succeeded, and the error is thrown at the end.
class ArchiveFile {
 public:
  explicit ArchiveFile(const std::filesystem::path& path)
      : file_(path), writer_([this](const void* bytes, std::size_t count) {
          return keep(static_cast<const std::byte*>(bytes), count);
        }) {}

  void write(const std::string& name, std::span<const std::byte> bytes) {
    writer_.writeRecord(name, bytes.data(), bytes.size());
    if (failure_) std::rethrow_exception(failure_);
  }

  void commit() {
    writer_.writeEndOfFile();
    if (failure_) std::rethrow_exception(failure_);
    file_.commit();
  }

 private:
  std::size_t keep(const std::byte* bytes, std::size_t count) {
    if (failure_) return count;
    try {
      file_.write({bytes, count});
    } catch (...) {
      failure_ = std::current_exception();
    }
    return count;
  }

  sys::AtomicFile file_;
  std::exception_ptr failure_;
  caffe2::serialize::PyTorchStreamWriter writer_;
};

class Flattened {
 public:
  NamedTensors take(const c10::IValue& value) {
    add("", value, 0);
    return std::move(tensors_);
  }

 private:
  void add(const std::string& name, const c10::IValue& value, int depth) {
    bytes_ += name.size();
    check_input(depth <= deepest_name && ++values_ <= most_flattened && bytes_ <= most_name_bytes,
                "expected at most {} values, nested {} times, with names of at most {} bytes, "
                "found more",
                most_flattened, deepest_name, most_name_bytes);
    auto below = [&](const std::string& key) { return name.empty() ? key : name + '.' + key; };
    if (value.isTensor()) {
      check_input(tensors_.emplace(name, value.toTensor()).second,
                  "expected different names, found two tensors named '{}'", escaped(name));
    } else if (value.isGenericDict()) {
      for (const auto& item : value.toGenericDict())
        add(below(item.key().isInt() ? formatted("{}", item.key().toInt())
                                     : item.key().toStringRef()),
            item.value(), depth + 1);
    } else if (value.isList() || value.isTuple()) {
      const auto items =
          value.isList() ? value.toListRef() : value.toTupleRef().elements().asArrayRef();
      for (std::size_t i = 0; i < items.size(); ++i)
        add(below(formatted("{}", i)), items[i], depth + 1);
    }
  }

  NamedTensors tensors_;
  std::size_t values_ = 0;
  std::size_t bytes_ = 0;  // of names
};

}  // namespace

void write_torch_file(const std::filesystem::path& path, const c10::IValue& value) {
  const PickledValue content = pickled(value);
  ArchiveFile file(path);
  file.write("data.pkl", std::as_bytes(std::span(content.pickle)));
  const std::string order = "little";
  file.write("byteorder", std::as_bytes(std::span(order)));
  for (std::size_t i = 0; i < content.storages.size(); ++i) {
    const at::Tensor& bytes = content.storages[i];
    file.write(formatted("data/{}", i),
               {static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()});
  }
  file.commit();
}

c10::IValue read_torch_file(const std::filesystem::path& path, TorchReading how) {
  const auto source = std::make_shared<const TorchSource>(path, how);
  return in_file(path, [&] { return read_archive(source, {0, source->file.size()}); });
}

NamedTensors tensors_in(const c10::IValue& value) { return Flattened().take(value); }

}  // namespace lockstep::checkpoint
