// Damaged or malicious files of torch.save() are read or refused with BadInput; no other error is
// possible.
#include <lockstep/checkpoint/torch_file.h>

#include <lockstep/base/error.h>

#include "checkpoint/checksum.h"
#include "checkpoint/torch_values.h"
#include "support/fuzz.h"
#include "support/temporary_folder.h"
#include "sys/files.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::checkpoint {
namespace {

using test::below;
using test::FuzzRounds;
using test::mutated;
using test::one_in;
using test::Random;
using Records = std::vector<std::pair<std::string, std::string>>;

template <class T>
void put(std::string& text, T value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Builds a zip archive of any records, with correct lengths and checksums.
std::string zipped(const Records& records) {
  std::string text, directory;
  for (const auto& [name, content] : records) {
    std::string about;  // the fields common to both headers: flags to name length
    put<std::uint32_t>(about, 0);
    put<std::uint32_t>(about, 0);
    put(about, crc32_of(std::as_bytes(std::span(content))));
    put(about, static_cast<std::uint32_t>(content.size()));
    put(about, static_cast<std::uint32_t>(content.size()));
    put(about, static_cast<std::uint16_t>(name.size()));
    directory += std::string("PK\1\2\0\0\0\0", 8) + about + std::string(12, '\0');
    put(directory, static_cast<std::uint32_t>(text.size()));
    directory += name;
    text += std::string("PK\3\4\0\0", 6) + about + std::string(2, '\0') + name + content;
  }
  const auto begin = static_cast<std::uint32_t>(text.size());
  text += directory + std::string("PK\5\6\0\0\0\0", 8);
  put(text, static_cast<std::uint16_t>(records.size()));
  put(text, static_cast<std::uint16_t>(records.size()));
  put(text, static_cast<std::uint32_t>(directory.size()));
  put(text, begin);
  return text + std::string(2, '\0');
}

c10::impl::GenericDict dict() {
  return c10::impl::GenericDict(c10::AnyType::get(), c10::AnyType::get());
}

c10::IValue some_value() {
  auto state = dict(), group = dict(), all = dict();
  const at::Tensor flat = at::arange(24.);
  state.insert("fc.weight", flat.narrow(0, 4, 12).view({3, 4}).t());
  state.insert("fc.bias", flat);
  state.insert("steps", at::arange(3));
  state.insert("mask", at::ones(5, at::kBool));
  state.insert("fp8", at::zeros(5, at::kFloat8_e4m3fn));
  group.insert("lr", 0.001);
  group.insert("betas", c10::ivalue::Tuple::create({c10::IValue(0.9), c10::IValue(0.999)}));
  group.insert("params", c10::List<std::int64_t>({0, 1, 300, -5, std::int64_t{1} << 40}));
  all.insert("state", state);
  all.insert("param_groups", group);
  all.insert(7, c10::IValue());
  return all;
}

Records records_of(const PickledValue& value, Random& random) {
  Records records{{"a/data.pkl", value.pickle}};
  if (one_in(random, 2)) records.emplace_back("a/byteorder", one_in(random, 3) ? "big" : "little");
  for (std::size_t i = 0; i < value.storages.size(); ++i) {
    const at::Tensor& bytes = value.storages[i];
    records.emplace_back("a/data/" + std::to_string(i),
                         std::string(static_cast<const char*>(bytes.data_ptr()), bytes.nbytes()));
  }
  return records;
}

// Makes changes that random bytes hardly ever make: the pickle can still be read, but has another
// meaning.
std::string with_other_opcodes(std::string pickle, Random& random) {
  static const std::vector<std::pair<std::string, std::string>> changes{
      {"K\x03", std::string("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", 10)},
      {"K\x04", std::string("\x8a\x08\0\0\0\0\0\0\0\x40", 10)},
      {"K\x0c", "J\xff\xff\xff\xff"},
      {"K\x18", std::string("M\0\0", 3)},
      {"torch\nFloatStorage", "torch\nDoubleStorage"},
      {"torch\nFloatStorage", "torch.storage\nUntypedStorage"},
      {"torch._utils\n_rebuild_tensor_v2", "torch._utils\n_rebuild_tensor_v3"},
      {"torch._utils\n_rebuild_tensor_v2", "torch._utils\n_rebuild_parameter"},
      {"torch._utils\n_rebuild_tensor_v2", "os\nsystem"},
      {"collections\nOrderedDict", "torch\nSize"},
      {"ccollections\nOrderedDict\n", "h\x05"},
      {"fc.bias", "steps\0\0"},
      {"(", "(q\x05"},
      {"K", "h\x05K"},
      {"}(", "](]q\x01h\x01"},
      {"t", "tq\x05"},
      {"u", "ub"},
      {"tR", "t\x81"},
      {"X", std::string(300, ']') + "X"},
      {"X\x07", "X\xff"},
      {"G", "\x95"},
      {"\x80\x02", "\x80\x04"},
  };
  const auto& [from, to] = changes[below(random, changes.size())];
  std::vector<std::size_t> places;
  for (std::size_t at = pickle.find(from); at != std::string::npos; at = pickle.find(from, at + 1))
    places.push_back(at);
  if (!places.empty()) pickle.replace(places[below(random, places.size())], from.size(), to);
  return pickle;
}

std::string hostile_file(const PickledValue& value, const std::string& whole, Random& random) {
  std::string bytes = whole;  // as LibTorch writes it: ZIP64, aligned records
  if (!one_in(random, 4)) {
    Records records = records_of(value, random);
    for (auto count = below(random, 3); count > 0; --count)
      records[0].second = with_other_opcodes(records[0].second, random);
    if (one_in(random, 3)) records[0].second = mutated(records[0].second, random);
    if (one_in(random, 4)) records.push_back(records[below(random, records.size())]);
    if (one_in(random, 4)) {
      auto& [name, content] = records[below(random, records.size())];
      (one_in(random, 2) ? name : content) = mutated(one_in(random, 2) ? name : content, random);
    }
    bytes = zipped(records);
  }
  if (one_in(random, 3)) bytes = mutated(bytes, random);
  return bytes;
}

// Returns true if the text is one line without control characters.
bool is_plain(std::string_view text) {
  return std::ranges::none_of(text, [](unsigned char letter) { return letter < 32; });
}

// Reads all bytes of a tensor.
void touch(const at::Tensor& tensor) {
  if (tensor.numel() > 0 && tensor.numel() < 100'000)
    EXPECT_EQ(tensor.contiguous().numel(), tensor.numel());
}

TEST(TorchFileFuzz, FilesAreReadOrRefused) {
  const test::TemporaryFolder folder;
  const auto path = folder / "hostile.pt";
  const c10::IValue value = some_value();
  const PickledValue content = pickled(value);
  write_torch_file(path, value);
  const std::string whole = sys::read_file(path);
  std::uint64_t read = 0;
  FuzzRounds rounds("torch files");
  while (rounds.next()) {
    std::ofstream(path, std::ios::binary) << hostile_file(content, whole, rounds.random());
    try {
      const c10::IValue found = read_torch_file(
          path, {.verify = !one_in(rounds.random(), 3), .map = one_in(rounds.random(), 2)});
      ++read;
      for (const auto& [name, tensor] : tensors_in(found)) touch(tensor);
    } catch (const BadInput& error) {
      EXPECT_TRUE(is_plain(error.what()));
      EXPECT_LT(std::strlen(error.what()), 2000u);
    }
  }
  if (!rounds.enough()) return;
  EXPECT_GT(read, rounds.count() / 50);
  EXPECT_LT(read, rounds.count());
}

// The unpickler by itself, with opcodes of all kinds.
TEST(TorchFileFuzz, PicklesAreReadOrRefused) {
  const std::string valid = pickled(some_value()).pickle;
  const std::string opcodes =
      "\x80\x95N\x88\x89JKM\x8a\x8bGX\x8c\x8d"
      "BC\x8e()t\x85\x86\x87]}aesuc\x93R\x81"
      "bQqr\x94hj.";
  std::uint64_t read = 0;
  FuzzRounds rounds("pickles");
  while (rounds.next()) {
    Random& random = rounds.random();
    std::string pickle = valid;
    if (one_in(random, 4)) {
      pickle = "\x80\x02";
      for (auto count = below(random, 200); count > 0; --count) {
        pickle += opcodes[below(random, opcodes.size())];
        if (one_in(random, 3)) pickle += static_cast<char>(below(random, 4));
      }
      pickle += '.';
    } else {
      for (auto count = below(random, 4); count > 0; --count)
        pickle = with_other_opcodes(std::move(pickle), random);
      if (one_in(random, 2)) pickle = mutated(std::move(pickle), random);
    }
    try {
      const Pickle tree(pickle, torch_globals());
      const c10::IValue found =
          values_of(tree, [](const std::string&, std::uint64_t bytes, at::ScalarType) {
            if (bytes > 1 << 20) throw BadInput("larger than any record");
            return at::zeros({static_cast<std::int64_t>(bytes)}, at::kByte);
          });
      ++read;
      for (const auto& [name, tensor] : tensors_in(found)) touch(tensor);
    } catch (const BadInput& error) {
      EXPECT_TRUE(is_plain(error.what()));
    }
  }
  if (!rounds.enough()) return;
  EXPECT_GT(read, rounds.count() / 50);
  EXPECT_LT(read, rounds.count());
}

}  // namespace
}  // namespace lockstep::checkpoint
