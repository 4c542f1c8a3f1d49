#include <lockstep/checkpoint/torch_file.h>

#include "base/check.h"
#include "base/visible.h"
#include "checkpoint/torch_archive.h"
#include "checkpoint/torch_values.h"
#include "sys/files.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <caffe2/serialize/inline_container.h>

#include <exception>
#include <memory>
#include <span>
#include <utility>

namespace lockstep::checkpoint {
namespace {

constexpr int deepest_name = 100;
constexpr std::size_t most_flattened = 4 << 20;

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
    check_input(depth <= deepest_name && ++values_ <= most_flattened,
                "expected at most {} values, nested {} times, found more", most_flattened,
                deepest_name);
    auto below = [&](const std::string& key) { return name.empty() ? key : name + '.' + key; };
    if (value.isTensor()) {
      check_input(tensors_.emplace(name, value.toTensor()).second,
                  "expected different names, found two tensors named '{}'", visible(name));
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
  try {
    return read_archive(source, {0, source->file.size()});
  } catch (const BadInput& problem) {
    throw BadInput(formatted("{}: {}", path.string(), problem.what()));
  }
}

NamedTensors tensors_in(const c10::IValue& value) { return Flattened().take(value); }

}  // namespace lockstep::checkpoint
