// Parses a safetensors header by the parser's events, which are converted to entries one after
// another: no tree of the whole text is built, so the time is linear in its length.
#pragma once

#include "checkpoint/safetensors_header.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

// Every event throws BadInput for text that the format does not allow, so all return true. The
// caller checks for duplicate tensor names at the end.
class HeaderEvents final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override;
  bool boolean(bool value) override { return scalar(value ? "true" : "false"); }
  bool number_integer(std::int64_t value) override;
  bool number_unsigned(std::uint64_t value) override;
  bool number_float(double value, const std::string& text) override;
  bool string(std::string& value) override;
  bool binary(nlohmann::json::binary_t& value) override;
  bool start_object(std::size_t elements) override;
  bool key(std::string& value) override;
  bool end_object() override;
  bool start_array(std::size_t elements) override;
  bool end_array() override;
  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::detail::exception& error) override;

  // Returns the parsed header, in the order of the text.
  [[nodiscard]] SafetensorsHeader take() { return std::move(header_); }

 private:
  // The meaning of a value, determined by the keys that lead to it.
  enum class Place { root, entry, metadata, dtype, shape, offsets, ignored };

  // Handles a value that is neither a list nor an object; `shown` is its text in messages.
  bool scalar(std::string_view shown);
  void open(std::string_view shown);
  void finish_entry();
  void check_once(const std::string& key);
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void fail_list(std::string_view found) const;
  [[nodiscard]] bool in_list() const { return depth_ == 3; }

  SafetensorsHeader header_;
  int depth_ = 0;  // number of open objects and lists
  Place place_ = Place::root;
  bool in_metadata_ = false, has_metadata_ = false;
  std::string metadata_key_;
  TensorEntry entry_;
  std::vector<std::uint64_t> numbers_;  // of the current list
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  std::vector<std::set<std::string>> keys_{5};  // of the open object at each depth
};

}  // namespace lockstep::checkpoint
