#include "checkpoint/header_events.h"

#include "base/visible.h"
#include "checkpoint/dtype_names.h"
#include "sys/bounded_json.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace lockstep::checkpoint {
namespace {

constexpr int most_nested = 4;
constexpr std::size_t most_dims = 64;  // the limit of LibTorch's operations

// Returns std::nullopt on overflow, also if a size of 0 hides it: the strides would overflow.
std::optional<std::uint64_t> bytes_of(c10::ScalarType dtype,
                                      const std::vector<std::int64_t>& shape) {
  std::uint64_t bytes = c10::elementSize(dtype);
  for (std::int64_t size : shape)
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1)),
                               &bytes) ||
        bytes > INT64_MAX)
      return std::nullopt;
  return std::ranges::count(shape, 0) > 0 ? 0 : bytes;
}

}  // namespace

// The reference library accepts "__metadata__": null.
bool HeaderEvents::null() {
  return (in_metadata_ && place_ == Place::entry && depth_ == 1) || scalar("null");
}

bool HeaderEvents::number_integer(std::int64_t value) { return scalar(formatted("{}", value)); }

bool HeaderEvents::number_unsigned(std::uint64_t value) {
  const bool is_wanted = in_list() && (place_ == Place::shape || place_ == Place::offsets);
  if (!is_wanted || value > INT64_MAX) return scalar(formatted("{}", value));
  numbers_.push_back(value);
  if (place_ == Place::shape && numbers_.size() > most_dims)
    fail(formatted("shape has more than {} dims", most_dims));
  if (place_ == Place::offsets && numbers_.size() > 2)
    fail(formatted("data_offsets must be [begin, end], found [{}, ...", listed(numbers_, ", ")));
  return true;
}

bool HeaderEvents::number_float(double, const std::string& text) {
  return scalar(visible(text, 80));
}

bool HeaderEvents::string(std::string& value) {
  if (place_ == Place::metadata && depth_ == 2) {
    header_.metadata.emplace(metadata_key_, std::move(value));
    return true;
  }
  if (place_ != Place::dtype) return scalar(formatted("\"{}\"", visible(value, 80)));
  const std::optional<c10::ScalarType> dtype = dtype_of(value);
  if (!dtype) fail(formatted("unknown dtype \"{}\"", visible(value, 80)));
  entry_.dtype = *dtype;
  return true;
}

bool HeaderEvents::binary(nlohmann::json::binary_t&) { return scalar("bytes"); }

bool HeaderEvents::scalar(std::string_view shown) {
  switch (place_) {
    case Place::root:
    case Place::entry:
      if (in_metadata_)
        throw BadInput(formatted("__metadata__ must be an object of strings, found {}", shown));
      fail(formatted("expected an object, found {}", shown));
    case Place::metadata:
      throw BadInput(
          formatted("__metadata__ '{}' must be a string, found {}", visible(metadata_key_), shown));
    case Place::dtype:
      fail(formatted("unknown dtype {}", shown));
    case Place::shape:
    case Place::offsets:
      fail_list(shown);
    case Place::ignored:
      return true;
  }
  return true;
}

// The value of a key of the root must be an object; those of shape and data_offsets must be lists.
bool HeaderEvents::start_object(std::size_t) {
  if (depth_ >= 2 && place_ != Place::ignored) scalar("an object");
  open("an object");
  if (depth_ == 1) return true;
  if (depth_ == 2 && in_metadata_) place_ = Place::metadata;
  if (depth_ == 2) {
    entry_.shape.clear();
    has_dtype_ = has_shape_ = has_offsets_ = false;
  }
  keys_[depth_].clear();
  return true;
}

bool HeaderEvents::start_array(std::size_t) {
  const bool is_list = depth_ == 2 && (place_ == Place::shape || place_ == Place::offsets);
  if (!is_list && place_ != Place::ignored) scalar("a list");
  open("a list");
  numbers_.clear();
  return true;
}

void HeaderEvents::open(std::string_view shown) {
  if (++depth_ > most_nested)
    throw BadInput(formatted("header is nested too deeply: {} at depth {}", shown, depth_));
}

bool HeaderEvents::key(std::string& value) {
  if (depth_ == 1) {
    in_metadata_ = value == "__metadata__";
    if (in_metadata_ && std::exchange(has_metadata_, true))
      throw BadInput("header names '__metadata__' twice");
    place_ = Place::entry;
    if (!in_metadata_) entry_.name = std::move(value);
    return true;
  }
  check_once(value);
  if (depth_ > 2) return true;
  if (in_metadata_) {
    metadata_key_ = std::move(value);
  } else if (value == "dtype") {
    place_ = Place::dtype;
    has_dtype_ = true;
  } else if (value == "shape") {
    place_ = Place::shape;
    has_shape_ = true;
  } else if (value == "data_offsets") {
    place_ = Place::offsets;
    has_offsets_ = true;
  } else {
    place_ = Place::ignored;
  }
  return true;
}

void HeaderEvents::check_once(const std::string& key) {
  if (!keys_[depth_].insert(key).second)
    throw BadInput(formatted("header names '{}' twice", visible(key)));
}

bool HeaderEvents::end_array() {
  --depth_;
  if (depth_ > 2) return true;
  if (place_ == Place::shape) {
    entry_.shape.assign(numbers_.begin(), numbers_.end());
  } else if (place_ == Place::offsets) {
    if (numbers_.size() != 2 || numbers_[0] > numbers_[1])
      fail(formatted("data_offsets must be [begin, end], found [{}]", listed(numbers_, ", ")));
    entry_.begin = numbers_[0];
    entry_.end = numbers_[1];
  }
  return true;
}

bool HeaderEvents::end_object() {
  --depth_;
  if (depth_ == 1 && !in_metadata_) finish_entry();
  if (depth_ == 1) place_ = Place::root;
  return true;
}

void HeaderEvents::finish_entry() {
  for (auto [is_there, name] : {std::pair(has_dtype_, "dtype"), std::pair(has_shape_, "shape"),
                                std::pair(has_offsets_, "data_offsets")})
    if (!is_there) fail(formatted("has no {}", name));
  const std::optional<std::uint64_t> bytes = bytes_of(entry_.dtype, entry_.shape);
  if (!bytes || *bytes != entry_.end - entry_.begin)
    fail(formatted("data_offsets [{}, {}] hold {} bytes, {} [{}] takes {}", entry_.begin,
                   entry_.end, entry_.end - entry_.begin, name_of(entry_.dtype),
                   listed(entry_.shape, ", "), bytes ? std::to_string(*bytes) : "more than 2^63"));
  header_.entries.push_back(std::move(entry_));
}

bool HeaderEvents::parse_error(std::size_t, const std::string&,
                               const nlohmann::detail::exception& error) {
  throw BadInput(formatted("header is not JSON: {}", visible(sys::json_problem(error), 300)));
}

void HeaderEvents::fail(const std::string& what) const {
  throw BadInput(formatted("tensor '{}': {}", visible(entry_.name), what));
}

void HeaderEvents::fail_list(std::string_view found) const {
  fail(formatted("{} must be a list of integers, found {}{}",
                 place_ == Place::shape ? "shape" : "data_offsets", found,
                 in_list() ? " in it" : ""));
}

}  // namespace lockstep::checkpoint
