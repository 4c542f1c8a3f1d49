// Folders of a distributed checkpoint that are damaged or malicious.
#include "checkpoint/distributed_python.h"
#include "support/fuzz.h"
#include "support/messages.h"
#include "sys/files.h"

#include <lockstep/base/error.h>

#include <fstream>
#include <map>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {
namespace {

class RefusedDistributedCheckpoint : public DistributedCheckpoint {
 protected:
  void SetUp() override {
    DistributedCheckpoint::SetUp();
    if (!IsSkipped()) dcp_ = write(2) / "dcp";
  }
  std::string refusal() const {
    return test::message_of<BadInput>([&] { (void)read_distributed_checkpoint(dcp_); });
  }
  // Applies a change to the metadata object `m` in Python; returns the error that reading the
  // folder then throws.
  std::string after(const std::string& change) const {
    expect_python(R"(
import pickle
path = sys.argv[1] + "/.metadata"
m = pickle.load(open(path, "rb"))
names, places = m.state_dict_metadata, m.storage_data
weight = names["model.0.weight"]
key = next(key for key in places if key.fqn == "model.0.weight" and key.offset[0] > 0)
)" + change + "\npickle.dump(m, open(path, 'wb'))",
                  {dcp_.string()});
    return refusal();
  }

  std::filesystem::path dcp_;
};

TEST_F(RefusedDistributedCheckpoint, NamesWhatIsWrong) {
  const std::string metadata = sys::read_file(dcp_ / ".metadata");
  const std::vector<std::pair<std::string, std::string>> cases{
      {"weight.chunks.pop()", "is 20, expected 35"},
      {"weight.chunks[1].offsets = torch.Size([3, 0])",
       "parts [0, 0] + [4, 5] and [3, 0] + [3, 5]"},
      {"weight.chunks[1].offsets = torch.Size([5, 0])", "does not fit into sizes [7, 5]"},
      {"weight.chunks[1].sizes = torch.Size([2**62, 2**62])", "does not fit into sizes [7, 5]"},
      {"weight.size = torch.Size([2**62, 2**62])", "are too large"},
      {"weight.properties.dtype = torch.float64", "expected a tensor of Double [4, 5]"},
      {"del places[key]", "no file has 'model.0.weight' at [4, 0]"},
      {"places[key].relative_path = '../x'", "expected a file in this folder, found '../x'"},
      {"places[key].offset = 2**62", "expected 1577 bytes at byte 4611686018427387904"},
      {"places[key].offset = -1", "expected at least 0, found -1"},
      {"places[key].length -= 1", "expected a zip archive that ends with its directory"},
      {"places[key].transform_descriptors = ['zstd']", "saved with an extension of PyTorch"},
      {"places[key], places[next(iter(places))] = places[next(iter(places))], places[key]",
       "expected a tensor of Float [4, 5], found Float [3, 5]"},
      {"m.planner_data['model.0.weight'] = ('step',)", "has the path of another entry"},
      {"import fractions; m.version = fractions.Fraction(1, 3)", "asks for fractions.Fraction"},
      {"m = 3", "expected an object of torch.distributed.checkpoint.metadata.Metadata, found a"},
  };
  for (const auto& [change, expected] : cases) {
    const std::string found = after(change);
    EXPECT_NE(found.find(expected), std::string::npos) << change << '\n' << found;
    EXPECT_EQ(found.find(dcp_.string()), 0u) << found;
    EXPECT_EQ(found.find('\n'), std::string::npos) << found;
    sys::AtomicFile::write(dcp_ / ".metadata", metadata);
  }
  std::filesystem::resize_file(dcp_ / "__1_0.distcp", 1000);
  EXPECT_NE(refusal().find("__1_0.distcp: at byte"), std::string::npos) << refusal();
  EXPECT_THROW((void)read_distributed_checkpoint(folder_ / "nowhere"), SystemError);
}

// Python 3.11.0 to 3.11.3 pickle an enum's value as getattr(its class, its name).
TEST_F(RefusedDistributedCheckpoint, EnumsOfOlderPythonsAreNot) {
  const auto before = tensors_in(read_distributed_checkpoint(dcp_));
  expect_python(R"(
import pickle
path = sys.argv[1] + "/.metadata"
m = pickle.load(open(path, "rb"))
from torch.distributed.checkpoint import metadata
def by_name(self, protocol):
    return getattr, (type(self), self.name)
metadata._MEM_FORMAT_ENCODING.__reduce_ex__ = by_name
pickle.dump(m, open(path, "wb"))
assert b"getattr" in open(path, "rb").read()
)",
                {dcp_.string()});
  const auto after = tensors_in(read_distributed_checkpoint(dcp_));
  ASSERT_EQ(after.size(), before.size());
  for (const auto& [name, tensor] : before) EXPECT_TRUE(after.at(name).equal(tensor)) << name;
}

TEST_F(RefusedDistributedCheckpoint, FuzzFilesAreReadOrRefused) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(dcp_))
    files[entry.path().filename().string()] = sys::read_file(entry.path());
  std::uint64_t read = 0;
  test::FuzzRounds rounds("distributed checkpoints", 10);
  while (rounds.next()) {
    auto file = files.begin();
    std::advance(file, test::below(rounds.random(), files.size()));
    if (test::one_in(rounds.random(), 2)) file = files.find(".metadata");
    std::ofstream(dcp_ / file->first, std::ios::binary)
        << test::mutated(file->second, rounds.random());
    try {
      for (const auto& [name, tensor] : tensors_in(read_distributed_checkpoint(dcp_)))
        if (tensor.numel() < 100'000) EXPECT_EQ(tensor.contiguous().numel(), tensor.numel());
      ++read;
    } catch (const BadInput& error) {
      EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
    } catch (const SystemError& error) {  // any string of .metadata may have become a file name
      EXPECT_NE(std::string(error.what()).find(dcp_.string()), std::string::npos) << error.what();
    }
    std::ofstream(dcp_ / file->first, std::ios::binary) << file->second;
  }
  if (rounds.enough()) EXPECT_LT(read, rounds.count());
}

}  // namespace
}  // namespace lockstep::checkpoint
