#include "parallel/part_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <numeric>
#include <utility>

namespace lockstep::parallel {
namespace {

constexpr std::size_t word_bytes = sizeof(std::int64_t);

class Encoder {
 public:
  void number(std::int64_t value) { words_.push_back(value); }
  template <typename Numbers>
  void numbers(const Numbers& values) {
    number(static_cast<std::int64_t>(values.size()));
    for (auto value : values) number(value);
  }
  void text(const std::string& value) {
    number(static_cast<std::int64_t>(value.size()));
    std::size_t begin = words_.size();
    words_.resize(begin + (value.size() + word_bytes - 1) / word_bytes);
    if (!value.empty()) std::memcpy(words_.data() + begin, value.data(), value.size());
  }
  std::vector<std::int64_t> take() { return std::move(words_); }

 private:
  std::vector<std::int64_t> words_;
};

class Decoder {
 public:
  explicit Decoder(std::span<const std::int64_t> words) : words_(words) {}

  std::int64_t number() {
    std::int64_t value = words_.front();
    words_ = words_.subspan(1);
    return value;
  }
  template <typename Number>
  std::vector<Number> numbers() {
    auto count = static_cast<std::size_t>(number());
    std::vector<Number> values;
    for (std::size_t i = 0; i < count; ++i) values.push_back(static_cast<Number>(number()));
    return values;
  }
  std::string text() {
    auto length = static_cast<std::size_t>(number());
    std::string value(reinterpret_cast<const char*>(words_.data()), length);
    words_ = words_.subspan((length + word_bytes - 1) / word_bytes);
    return value;
  }

 private:
  std::span<const std::int64_t> words_;
};

std::vector<std::int64_t> encoded(std::span<const PartDescription> parts) {
  Encoder encoder;
  encoder.number(static_cast<std::int64_t>(parts.size()));
  for (const PartDescription& part : parts) {
    encoder.text(part.name);
    encoder.number(static_cast<std::int64_t>(part.dtype));
    encoder.numbers(part.slice.sizes);
    encoder.numbers(part.slice.box.offsets);
    encoder.numbers(part.slice.box.sizes);
    encoder.number(part.slice.range.begin);
    encoder.number(part.slice.range.end);
    encoder.numbers(part.slice.dim_order);
    encoder.number(part.is_replaced ? 1 : 0);
    encoder.number(static_cast<std::int64_t>(part.aliases.size()));
    for (const std::string& alias : part.aliases) encoder.text(alias);
    encoder.number(static_cast<std::int64_t>(part.device));
  }
  return encoder.take();
}

std::vector<PartDescription> decoded(std::span<const std::int64_t> words) {
  Decoder decoder(words);
  std::vector<PartDescription> parts(static_cast<std::size_t>(decoder.number()));
  for (PartDescription& part : parts) {
    part.name = decoder.text();
    part.dtype = static_cast<c10::ScalarType>(decoder.number());
    part.slice.sizes = decoder.numbers<std::int64_t>();
    part.slice.box.offsets = decoder.numbers<std::int64_t>();
    part.slice.box.sizes = decoder.numbers<std::int64_t>();
    part.slice.range.begin = decoder.number();
    part.slice.range.end = decoder.number();
    part.slice.dim_order = decoder.numbers<int>();
    part.is_replaced = decoder.number() != 0;
    part.aliases.resize(static_cast<std::size_t>(decoder.number()));
    for (std::string& alias : part.aliases) alias = decoder.text();
    part.device = static_cast<c10::DeviceType>(decoder.number());
  }
  return parts;
}

}  // namespace

std::vector<std::vector<PartDescription>> exchange_parts(Group& group,
                                                         std::span<const PartDescription> own) {
  std::vector<std::int64_t> words = encoded(own);
  auto length = static_cast<std::int64_t>(words.size());
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(group.size()));
  group
      .all_gather(at::from_blob(lengths.data(), {group.size()}, at::kLong),
                  at::from_blob(&length, {1}, at::kLong), {.tag = "exchange of parts"})
      .wait();
  std::vector<std::int64_t> all(
      static_cast<std::size_t>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})));
  group
      .all_gather(at::from_blob(all.data(), {static_cast<std::int64_t>(all.size())}, at::kLong),
                  at::from_blob(words.data(), {length}, at::kLong), lengths,
                  {.tag = "exchange of parts"})
      .wait();
  std::vector<std::vector<PartDescription>> by_rank;
  std::span<const std::int64_t> left(all);
  for (std::int64_t count : lengths) {
    by_rank.push_back(decoded(left.first(static_cast<std::size_t>(count))));
    left = left.subspan(static_cast<std::size_t>(count));
  }
  return by_rank;
}

std::set<std::string> names_of_all(Group& group, const std::set<std::string>& own) {
  std::vector<PartDescription> list;
  for (const std::string& name : own) list.push_back({.name = name});
  std::set<std::string> all;
  for (const auto& of_rank : exchange_parts(group, list))
    for (const PartDescription& part : of_rank) all.insert(part.name);
  return all;
}

}  // namespace lockstep::parallel
