// Checks that docs/reference/checkpoint_format.md shows real files.
#include <lockstep/checkpoint/checkpoint.h>

#include "base/format.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/small_training.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <cctype>
#include <fstream>
#include <iterator>
#include <string>

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::text_of;

struct OneWeight : torch::nn::Module {
  OneWeight() : w(register_parameter("w", torch::tensor({1.0F, 2.0F, 3.0F}))) {}
  at::Tensor w;
};

fs::path save_example_of_document(const fs::path& out) {
  run_as_threads(2, [&](Group group) {
    auto model = std::make_shared<OneWeight>();
    Handle handle = fully_shard(model, group, {.units = {}});
    torch::optim::SGD sgd(handle.parameters(), 0.1);
    save(out, handle, sgd, {.step = 1});
  });
  return out / "step-00000001";
}

// Formats bytes like `xxd`.
std::string hex_of(const std::string& bytes) {
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 16) {
    text += formatted("{:08x}:", at);
    std::string shown;
    for (std::size_t i = at; i < at + 16; ++i) {
      const bool is_there = i < bytes.size();
      const auto byte = static_cast<unsigned char>(is_there ? bytes[i] : 0);
      text += std::string(i % 2 == 0 ? " " : "") + (is_there ? formatted("{:02x}", byte) : "  ");
      if (is_there) shown += std::isprint(byte) != 0 ? static_cast<char>(byte) : '.';
    }
    text += "  " + shown + "\n";
  }
  return text;
}

std::string document() {
  return text_of(LOCKSTEP_SOURCE_DIR "/docs/reference/checkpoint_format.md");
}

TEST(FormatDocument, ShowsTheBytesThatAreWritten) {
  test::TemporaryFolder out;
  const fs::path folder = save_example_of_document(out.path());
  const std::string model = text_of(folder / "model.safetensors");
  EXPECT_NE(document().find("```\n" + hex_of(model) + "```\n"), std::string::npos) << hex_of(model);
  const auto length = static_cast<unsigned char>(model[0]);
  EXPECT_NE(document().find(formatted("the length of the header, {}.", length)), std::string::npos);
}

// Every line of the excerpt must occur in the file.
TEST(FormatDocument, ShowsTheLayoutThatIsWritten) {
  test::TemporaryFolder out;
  const std::string layout = text_of(save_example_of_document(out.path()) / "layout.json");
  const std::string text = document();
  const std::size_t begin = text.find("In `layout.json` stands:\n\n```\n");
  ASSERT_NE(begin, std::string::npos);
  const std::size_t first = text.find("```\n", begin) + 4;
  std::string excerpt = text.substr(first, text.find("```", first) - first);
  int lines = 0;
  for (std::size_t end = 0; (end = excerpt.find('\n')) != std::string::npos; ++lines) {
    EXPECT_NE(layout.find(excerpt.substr(0, end + 1)), std::string::npos)
        << excerpt.substr(0, end) << "\nin\n"
        << layout;
    excerpt.erase(0, end + 1);
  }
  EXPECT_GT(lines, 10);
}

TEST(FormatDocument, NamesTheDtypes) {
  const std::string text = document();
  for (const DtypeName& row : dtype_names())
    EXPECT_NE(text.find(formatted("`{}`", row.name)), std::string::npos) << row.name;
}

}  // namespace
}  // namespace lockstep::checkpoint
